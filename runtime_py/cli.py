"""The command line: options in, answers out."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from runtime_py import bench
from runtime_py.answer import Answer
from runtime_py.climb import AUTO, CONFIDENCE, PROBABILITY, Climb
from runtime_py.conversation import Asking, Conversation
from runtime_py.errors import DeviceError, InputFileError
from runtime_py.model import Model
from runtime_py.sampling import Sampling
from runtime_py.state import State
from runtime_py.tools import Tool, as_tool, read_tools, tools_from_file

__all__ = ["main"]

_CLIMBING: Final = {
    "threshold": "threshold",
    "sure_by": "by",
    "within_seconds": "seconds",
    "within_tokens": "tokens",
}
"""Options of a climb, and what they set."""
_NO_CALLS: Final = 7
_INTERRUPTED: Final = 130
_EPILOG: Final = """\
Without --tools and --schema the ladder goes on with QUERY as a plain text. Without QUERY and --queries the
session is interactive: its turns stay in the state; /reset forgets them, /quit leaves.

Measure a bundle: python -m runtime_py bench BUNDLE [--compare OTHER_BUNDLE]

Exit codes: 2 usage, 3 bundle, 4 input, 5 state, 6 something missing, 7 an answer without usable calls.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        if words[:1] == ["bench"]:
            return bench.main(words[1:])
        return _run(_checked(_parser(), words))
    except DeviceError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m runtime_py",
        description="Answer queries with calls of the offered tools.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("bundle", type=Path, help="folder that the exporter wrote")
    parser.add_argument("query", nargs="?", help="what is wanted")
    asked = parser.add_argument_group("what is asked")
    asked.add_argument("--tools", type=Path, help="JSON file with a list of tools")
    asked.add_argument("--schema", type=Path, help="JSON file with one schema to fill from the query")
    asked.add_argument("--system", default="", help="instruction that goes first")
    asked.add_argument(
        "--queries", type=Path, help="JSON lines, - for stdin: a query, or an object with query and tools"
    )
    asked.add_argument(
        "--top-tools", type=int, metavar="K", help="offer only the K tools nearest to the query"
    )
    answer = parser.add_argument_group("the answer")
    answer.add_argument("--constrain", action=argparse.BooleanOptionalAction, help="admit only valid calls")
    answer.add_argument("--confidence", action=argparse.BooleanOptionalAction, help="score the answer")
    answer.add_argument("--min-confidence", type=float, metavar="P", help="withhold calls less sure, 0 to 1")
    answer.add_argument("--max-tokens", type=int, default=256, help="of an answer; default 256")
    answer.add_argument("--json", action="store_true", help="everything that is known of the answer")
    answer.add_argument("--temperature", type=float, default=0.0, help="default 0: the likeliest token")
    answer.add_argument("--top-k", type=int, default=0)
    answer.add_argument("--top-p", type=float, default=1.0)
    answer.add_argument("--min-p", type=float, default=0.0)
    answer.add_argument("--seed", type=int)
    depth = parser.add_argument_group("depth, where the bundle runs at several")
    depth.add_argument(
        "--depth", type=_depth, metavar="N|auto", help="blocks that answer; auto climbs until one is sure"
    )
    depth.add_argument("--threshold", type=float, metavar="P", help="sure enough for auto; default 0.9")
    depth.add_argument("--sure-by", choices=[CONFIDENCE, PROBABILITY], help="default: the head, if any")
    depth.add_argument("--within-seconds", type=float, metavar="S", help="begin no rung that ends later")
    depth.add_argument("--within-tokens", type=int, metavar="T", help="nor one that takes more in all")
    depth.add_argument("--draft", type=int, metavar="N", help="let N blocks draft what the depth checks")
    device = parser.add_argument_group("the device")
    device.add_argument("--context", type=int, help="tokens of prompt and answer; default: as trained")
    device.add_argument("--window", type=int, help="served window; default: the checkpoint's, 0 is none")
    device.add_argument("--prefix-file", type=Path, help="keep the prefilled tools here from run to run")
    device.add_argument("--threads", type=int, default=0, help="default: ONNX Runtime's choice")
    device.add_argument("--no-verify", action="store_true", help="skip the sums of the bundle's files")
    return parser


def _checked(parser: argparse.ArgumentParser, words: list[str]) -> argparse.Namespace:
    """Options that go together."""
    options = parser.parse_args(words)
    if options.query is not None and options.queries is not None:
        parser.error("give QUERY or --queries, not both")
    if options.tools is not None and options.schema is not None:
        parser.error("give --tools or --schema, not both")
    if options.top_tools is not None and options.prefix_file is not None:
        parser.error("--top-tools offers other tools from query to query: drop --prefix-file")
    if options.top_tools is not None and options.query is None and options.queries is None:
        parser.error("--top-tools needs QUERY or --queries: a session keeps its tools")
    if options.depth != AUTO and any(getattr(options, name) is not None for name in _CLIMBING):
        parser.error("--threshold, --sure-by and --within-... are for --depth auto")
    if options.depth == AUTO and options.prefix_file is not None:
        parser.error("--prefix-file keeps one depth: drop it, or --depth auto")
    if (
        options.depth == AUTO
        and options.tools is None
        and options.schema is None
        and options.query is not None
    ):
        parser.error("--depth auto needs --tools or --schema: a text has no end to be sure of")
    return options


def _depth(word: str) -> int | str:
    return AUTO if word == AUTO else int(word)


def _climb(options: argparse.Namespace) -> int | Climb | None:
    """The depth that is asked for, or how to find it."""
    if options.depth != AUTO:
        return None if options.depth is None else int(options.depth)
    given = {field: getattr(options, name) for name, field in _CLIMBING.items()}
    return Climb(**{field: value for field, value in given.items() if value is not None})


def _run(options: argparse.Namespace) -> int:
    asking = Asking(
        depth=_climb(options),
        draft=options.draft,
        sampling=Sampling(
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            min_p=options.min_p,
            seed=options.seed,
        ),
        max_tokens=options.max_tokens,
        constrain=options.constrain,
        exactly_one=options.schema is not None,
        confidence=options.confidence,
        min_confidence=options.min_confidence,
    )
    tools = _tools(options)
    model = Model.load(options.bundle, verify=not options.no_verify, threads=options.threads)
    if options.queries is not None:
        return _file(model, options, tools or [], asking)
    if tools is None and options.query is not None:
        return _plain(model, options, asking)
    conversation = _conversation(model, options, tools or [], options.query)
    if options.query is None:
        return _interactive(conversation, options, asking)
    return _print(conversation.ask(options.query, asking), options)


def _tools(options: argparse.Namespace) -> list[Tool] | None:
    """The declared tools; None where the query is a plain text."""
    if options.schema is not None:
        schema = _json(options.schema)
        if isinstance(schema, dict) and not {"name", "function"} & schema.keys():
            schema = {"name": str(schema.get("title") or "extract"), "parameters": schema}
        return [as_tool(schema)]
    return tools_from_file(options.tools) if options.tools is not None else None


def _json(path: Path) -> Any:  # noqa: ANN401 - JSON
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputFileError(f"{path}: cannot be read ({error}). Give a JSON file.") from error


def _conversation(
    model: Model, options: argparse.Namespace, tools: list[Tool], query: str | None
) -> Conversation:
    if options.top_tools is not None and query is not None:
        tools = model.nearest_tools(query, tools, options.top_tools)
    prefix = _kept_prefix(model, options, tools) if options.prefix_file is not None else None
    return model.conversation(
        tools, options.system, prefix=prefix, context=options.context, window=options.window
    )


def _kept_prefix(model: Model, options: argparse.Namespace, tools: list[Tool]) -> State:
    """The prefix of the file, if it is one of these tools; else a new one, which is kept there."""
    path: Path = options.prefix_file
    if path.exists():
        state = model.load_state(path, options.context)
        fits = options.window in {None, state.window} and (options.depth or model.depths[-1]) == state.depth
        if fits and model.holds_prefix(state, tools, options.system):
            return state
    place = {"context": options.context, "window": options.window, "depth": options.depth}
    state = model.prefix(tools, options.system, **place)
    state.save(path)
    return state


def _plain(model: Model, options: argparse.Namespace, asking: Asking) -> int:
    state = model.state(options.context, window=options.window, depth=options.depth)
    generation = model.generate(
        options.query, state, sampling=asking.sampling, max_tokens=asking.max_tokens, draft=asking.draft
    )
    for piece in generation:
        if not options.json:
            sys.stdout.write(piece)
            sys.stdout.flush()
    found = {"text": generation.text, "finish_reason": generation.finish_reason}
    sys.stdout.write(_line({**found, "usage": generation.usage.to_json()}) if options.json else "\n")
    return 0


def _file(model: Model, options: argparse.Namespace, tools: list[Tool], asking: Asking) -> int:
    """Answer a file of queries; one that fails gives an error in its place."""
    code = 0
    prefix = _kept_prefix(model, options, tools) if options.prefix_file is not None else None
    for entry in _entries(options.queries):
        query = str(entry["query"])
        own = {"tools", "system"} & entry.keys()
        try:
            answer = model.call(
                query,
                read_tools(entry["tools"]) if "tools" in entry else tools,
                system=str(entry.get("system", options.system)),
                prefix=None if own else prefix,
                context=options.context,
                window=options.window,
                top_tools=options.top_tools,
                asking=asking,
            )
            found = answer.to_json()
            code = code or _code(answer)
        except DeviceError as error:
            found = {"error": {"kind": type(error).__name__, "message": str(error)}}
            code = code or error.exit_code
        sys.stdout.write(_line({"query": query, **found}))
        sys.stdout.flush()
    return code


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    """The entries of a file of queries."""
    try:
        lines = (sys.stdin.read() if str(path) == "-" else path.read_text("utf-8")).splitlines()
    except (OSError, ValueError) as error:
        raise InputFileError(f"{path}: cannot be read ({error}). Give a file of JSON lines.") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise InputFileError(f"{path}, line {number}: is no JSON ({error}).") from error
        if isinstance(entry, str):
            entry = {"query": entry}
        if not isinstance(entry, dict) or not isinstance(entry.get("query"), str):
            message = f"{path}, line {number}: is {line:.80}. Give a text, or an object with a query."
            raise InputFileError(message)
        yield entry


def _interactive(conversation: Conversation, options: argparse.Namespace, asking: Asking) -> int:
    while True:
        if sys.stdin.isatty():
            sys.stderr.write("> ")
            sys.stderr.flush()
        line = sys.stdin.readline()
        if not line or line.strip() == "/quit":
            return 0
        if line.strip() == "/reset":
            conversation.reset()
        elif line.strip():
            try:
                _print(conversation.ask(line.strip(), asking), options)
            except DeviceError as error:
                sys.stderr.write(f"error: {error}\n")


def _print(answer: Answer, options: argparse.Namespace) -> int:
    if answer.problem is not None:
        sys.stderr.write(f"{answer.problem}\n")
    whole = answer.to_json()
    sys.stdout.write(_line(whole if options.json else whole["calls"]))
    sys.stdout.flush()
    return _code(answer)


def _code(answer: Answer) -> int:
    return _NO_CALLS if answer.problem is not None and not answer.withheld else 0


def _line(value: Any) -> str:  # noqa: ANN401 - JSON
    return json.dumps(value, ensure_ascii=False) + "\n"
