"""The command line."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from runtime_py import Model
from runtime_py.cli import main

pytest.importorskip("llguidance", reason="constrains answers")

TOOLS = [{"name": "lamp", "description": "Lights", "parameters": {"on": {"type": "boolean"}}}]


@pytest.fixture
def tools(tmp_path: Path) -> str:
    path = tmp_path / "tools.json"
    path.write_text(json.dumps(TOOLS), encoding="utf-8")
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_prints_the_calls(bundle: Path, tools: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, str(bundle), "light on", "--tools", tools)
    assert code == 0
    assert isinstance(json.loads(out), list)
    assert err == ""


def test_prints_everything(bundle: Path, tools: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, str(bundle), "light on", "--tools", tools, "--json", "--threads", "1")
    answer = json.loads(out)
    assert code == 0
    assert answer["constrained"]
    assert 0 < answer["confidence"] < 1
    assert answer["usage"]["decode_tokens_per_second"] > 0


def test_an_answer_without_calls_has_a_code(
    bundle: Path, tools: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--no-constrain", "--max-tokens", "5"]
    code, out, err = run(capsys, str(bundle), "light on", "--tools", tools, *options)
    assert (code, out) == (7, "[]\n")
    assert err == "the answer was cut off as long as allowed\n"


def test_withholding_is_said_and_no_failure(
    bundle: Path, tools: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(30):
        options = ["--temperature", "30", "--seed", str(seed), "--max-tokens", "300", "--tools", tools]
        code, out, err = run(capsys, str(bundle), "light on", *options, "--min-confidence", "1")
        assert (code, out) == (0, "[]\n")
        if "withheld" in err:
            return
    pytest.fail("nothing was ever withheld")


def test_extracts(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "schema.json"
    path.write_text(
        '{"title": "mood", "properties": {"kind": {"enum": ["good", "bad"]}}, "required": ["kind"]}'
    )
    code, out, _ = run(capsys, str(bundle), "a fine day", "--schema", str(path))
    assert code == 0
    (call,) = json.loads(out)
    assert call["name"] == "mood"
    assert call["arguments"]["kind"] in {"good", "bad"}


def test_goes_on_with_a_plain_text(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, str(bundle), "light", "--max-tokens", "6")
    assert code == 0
    _, whole, _ = run(capsys, str(bundle), "light", "--max-tokens", "6", "--json")
    assert json.loads(whole)["text"] + "\n" == out


def test_a_file_of_queries(
    bundle: Path, tools: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines: list[Any] = [
        "light on",
        {"query": ""},
        {"query": "stop", "tools": [{"name": "stop", "parameters": {}}], "system": "Be brief."},
        {"query": "odd", "tools": ["odd"]},
        {"query": "light off"},
    ]
    path = tmp_path / "queries.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n", encoding="utf-8")
    code, out, _ = run(capsys, str(bundle), "--queries", str(path), "--tools", tools)
    answers = [json.loads(line) for line in out.splitlines()]
    assert [answer["query"] for answer in answers] == ["light on", "", "stop", "odd", "light off"]
    kinds = [answer.get("error", {}).get("kind") for answer in answers]
    assert kinds == [None, "EmptyQueryError", None, "ToolSchemaError", None]
    assert code == 4


def test_a_file_of_queries_with_kept_tools(
    bundle: Path,
    tools: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = ["light on", {"query": "stop", "tools": []}]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(json.dumps(line) for line in lines)))
    options = ["--queries", "-", "--tools", tools, "--prefix-file", str(tmp_path / "kept.npz")]
    code, out, _ = run(capsys, str(bundle), *options)
    assert code == 0
    assert len(out.splitlines()) == 2
    assert (tmp_path / "kept.npz").exists()


@pytest.mark.parametrize(
    "options",
    [
        ["x", "--queries", "q.jsonl"],
        ["x", "--tools", "t.json", "--schema", "s.json"],
        ["x", "--tools", "t.json", "--top-tools", "2", "--prefix-file", "p.npz"],
        ["--tools", "t.json", "--top-tools", "2"],
        ["x", "--seed", "many"],
    ],
)
def test_options_that_do_not_go_together(capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["bundle", *options])
    assert stopped.value.code == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["{", "7", "{}", '{"query": 5}'])
def test_a_bad_line_is_named(
    bundle: Path, tools: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    path = tmp_path / "queries.jsonl"
    path.write_text(f'"fine"\n{line}\n', encoding="utf-8")
    code, out, err = run(capsys, str(bundle), "--queries", str(path), "--tools", tools)
    assert code == 4
    assert len(out.splitlines()) == 1
    assert "queries.jsonl, line 2: is" in err


def test_an_interactive_session(
    bundle: Path, tools: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("one\n\ntwo\n/reset\none\n/quit\nnever\n"))
    code, out, err = run(capsys, str(bundle), "--tools", tools, "--json")
    texts = [json.loads(line)["usage"]["prompt_tokens"] for line in out.splitlines()]
    assert code == 0
    assert len(texts) == 3
    assert texts[0] == texts[2]
    assert "error" not in err


def test_a_long_session_says_that_the_context_is_full(
    bundle: Path, tools: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("one two three\n" * 8))
    _, out, err = run(capsys, str(bundle), "--tools", tools, "--context", "60")
    assert "of the context's 60 are left" in err
    assert 0 < len(out.splitlines()) < 8


def test_keeps_the_tools_in_a_file(
    bundle: Path, tools: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept.npz"
    options = [str(bundle), "light on", "--tools", tools, "--prefix-file", str(kept)]
    first = run(capsys, *options)
    written = kept.stat().st_mtime_ns
    assert run(capsys, *options) == first
    assert kept.stat().st_mtime_ns == written
    # Other tools are kept instead.
    assert run(capsys, *options, "--system", "Be brief.")[0] == 0
    assert kept.stat().st_mtime_ns != written


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nowhere", "x"], 3, "nowhere"),
        (["BUNDLE", "", "--tools", "TOOLS"], 4, "say what is wanted"),
        (["BUNDLE", "x", "--tools", "nowhere.json"], 4, "nowhere.json: cannot be read"),
        (["BUNDLE", "x", "--schema", "nowhere.json"], 4, "nowhere.json: cannot be read"),
        (["BUNDLE", "--queries", "nowhere.jsonl"], 4, "nowhere.jsonl: cannot be read"),
        (["BUNDLE", "x", "--tools", "TOOLS", "--context", "0"], 4, "context is 0"),
        (["BUNDLE", "x", "--tools", "TOOLS", "--context", "9"], 4, "tokens do not fit"),
        (["BUNDLE", "x", "--tools", "TOOLS", "--top-p", "2"], 4, "top_p is 2.0"),
        (["BUNDLE", "x", "--tools", "TOOLS", "--prefix-file", "TOOLS"], 5, "holds no saved state"),
        (["bench", "nowhere"], 3, "nowhere"),
        (["bench", "BUNDLE", "--prompt", "0"], 4, "give 1 or more"),
    ],
)
def test_failures(
    bundle: Path, tools: str, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, said: str
) -> None:
    words = [{"BUNDLE": str(bundle), "TOOLS": tools}.get(word, word) for word in arguments]
    found, out, err = run(capsys, *words)
    assert (found, out) == (code, "")
    assert err.startswith("error: ")
    assert said in err


def test_bench(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--prompt", "12", "--decode", "4", "--rounds", "1"]
    code, out, _ = run(capsys, "bench", str(bundle), "--compare", str(bundle), *sizes)
    rows = [line.split() for line in out.splitlines()]
    assert code == 0
    assert rows[0] == ["usual", "usual", "ratio"]
    assert [row[0] for row in rows[1:]] == ["load,", "prefill,", "decode,", "memory,", "memory,"]
    assert all(float(row[-3]) > 0 for row in rows[1:])
    code, out, _ = run(capsys, "bench", str(bundle), *sizes, "--json")
    assert json.loads(out)[0]["decode_rate"] > 0


# --- depths


@pytest.fixture
def several(ladder: Model) -> str:
    return str(ladder.bundle.folder)


@pytest.mark.parametrize("depth", ["2", "3", "4"])
def test_answers_at_a_depth(several: str, tools: str, capsys: pytest.CaptureFixture[str], depth: str) -> None:
    code, out, _ = run(capsys, several, "on", "--tools", tools, "--depth", depth, "--json")
    assert code in {0, 7}
    assert json.loads(out)["depth"] == int(depth)


def test_climbs(several: str, tools: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--tools", tools, "--depth", "auto", "--threshold", "1", "--sure-by", "probability", "--json"]
    _, out, _ = run(capsys, several, "on", *options)
    assert [attempt["depth"] for attempt in json.loads(out)["attempts"]] == [2, 3, 4]
    _, out, _ = run(capsys, several, "on", *options, "--within-tokens", "5")
    assert [attempt["depth"] for attempt in json.loads(out)["attempts"]] == [2]


def test_drafts(several: str, tools: str, capsys: pytest.CaptureFixture[str]) -> None:
    plain = run(capsys, several, "on", "--tools", tools)
    assert run(capsys, several, "on", "--tools", tools, "--draft", "2") == plain
    text = run(capsys, several, "on and on", "--max-tokens", "20")
    assert run(capsys, several, "on and on", "--max-tokens", "20", "--draft", "2") == text


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--depth", "7"], 6, "error: ladder: does not run at depth 7 (it has: 2, 3, 4)"),
        (["--draft", "4"], 4, "error: depth 4 cannot draft for depth 4"),
        (["--depth", "auto", "--threshold", "7"], 4, "error: threshold of a climb is 7.0"),
    ],
)
def test_says_what_a_depth_cannot_be(
    several: str, tools: str, capsys: pytest.CaptureFixture[str], options: list[str], code: int, said: str
) -> None:
    found, out, err = run(capsys, several, "on", "--tools", tools, *options)
    assert (found, out) == (code, "")
    assert err.startswith(said)


@pytest.mark.parametrize(
    "options", [["--depth", "auto"], ["--draft", "2"], ["--depth", "2"]], ids=["auto", "draft", "depth"]
)
def test_a_bundle_of_one_depth_says_so(
    bundle: Path, tools: str, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    code, _, err = run(capsys, str(bundle), "on", "--tools", tools, *options)
    assert code == 6
    assert "depth 4" in err or "it has: 4" in err


@pytest.mark.parametrize(
    "options",
    [
        ["--depth", "deep"],
        ["--depth", "2", "--threshold", "0.5"],
        ["--within-tokens", "5"],
        ["--depth", "auto", "--prefix-file", "x"],
    ],
)
def test_options_of_depths_that_do_not_go_together(
    several: str, tools: str, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(capsys, several, "on", "--tools", tools, *options)


def test_a_text_has_one_depth(several: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(capsys, several, "on", "--depth", "auto")
    assert run(capsys, several, "on", "--depth", "2", "--max-tokens", "5")[0] == 0


def test_a_prefix_file_keeps_its_depth(
    several: str, tools: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--tools", tools, "--prefix-file", str(tmp_path / "prefix"), "--json"]
    for depth in ("2", "2", "4"):
        _, out, _ = run(capsys, several, "on", *options, "--depth", depth)
        assert json.loads(out)["depth"] == int(depth)


def test_bench_measures_a_depth(several: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--prompt", "20", "--decode", "10", "--rounds", "1", "--json"]
    code, out, _ = run(capsys, "bench", several, *options, "--depth", "2")
    assert code == 0
    assert json.loads(out)[0]["decode_rate"] > 0
    code, _, err = run(capsys, "bench", several, *options, "--depth", "9")
    assert code == 3
    assert "does not run at depth 9" in err
