"""A bundle, loaded: what an application calls."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime_py.answer import Answer
from runtime_py.bundle import Bundle
from runtime_py.climb import Climb
from runtime_py.conversation import Asking, Conversation
from runtime_py.decoding import Decoding
from runtime_py.drafting import Speculation
from runtime_py.errors import ForeignStateError, InputError, StateFileError
from runtime_py.generate import Generation, Stops, stop_ids
from runtime_py.grammar import Constraint, GrammarCompiler
from runtime_py.heads import ToolIndex, Vector, sigmoid
from runtime_py.prefixes import Prefixes
from runtime_py.prompt import render_prefix
from runtime_py.rungs import Rung, Rungs
from runtime_py.sampling import Sampler, Sampling
from runtime_py.session import Logits
from runtime_py.speculation import Speculative
from runtime_py.state import Ids, State
from runtime_py.statefile import read_state
from runtime_py.text import Text
from runtime_py.tools import Schema, Tool, as_tool, read_tools

__all__ = ["Model"]

_CHUNK: Final = 32


class Model:
    """One bundle, at every depth that it runs at. Threads may share it, each with states of its own."""

    def __init__(self, rungs: Rungs, *, chunk: int = _CHUNK) -> None:
        """Wrap loaded graphs; :meth:`load` is the usual way."""
        self._rungs, self.bundle, self._chunk = rungs, rungs.bundle, chunk
        self._prefixes = Prefixes()
        self._embedded: dict[str, Vector] = {}

    @classmethod
    def load(cls, path: str | Path, *, verify: bool = True, threads: int = 0, chunk: int = _CHUNK) -> Model:
        """Load a bundle.

        Args:
            path: its folder.
            verify: compare every file with its SHA-256 sum, which reads all of them.
            threads: threads within an operator; 0 leaves it to ONNX Runtime.
            chunk: tokens of a prefill that are computed at once: more is faster, and takes more memory.

        Raises:
            BundleError: of the class that names the cause.
        """
        if chunk < 1:
            raise InputError(f"chunk is {chunk!r}: give 1 or more.")
        return cls(Rungs(Bundle.load(Path(path), verify=verify), threads), chunk=chunk)

    @property
    def depths(self) -> tuple[int, ...]:
        """Depths that the bundle runs at, the shallowest first; the last is the usual one."""
        return self._rungs.depths

    @cached_property
    def text(self) -> Text:
        """The tokenizer.

        Raises:
            UnavailableError: the bundle has none, or tokenizers is not installed.
        """
        return Text.of(self.bundle)

    @cached_property
    def grammar(self) -> GrammarCompiler:
        """What makes constraints.

        Raises:
            UnavailableError: there is no tokenizer, or llguidance is not installed.
        """
        return GrammarCompiler(self.text, self.bundle.tokens, self._rungs.deepest.decoder.width)

    def encode(self, text: str, *, bos: bool = False) -> list[int]:
        """Token ids of a text, behind ``bos`` where asked."""
        return [*([self.bundle.tokens.bos] if bos else []), *self.text.encode(text)]

    def state(
        self,
        context: int | None = None,
        *,
        window: int | None = None,
        depth: int | None = None,
        blocks: Collection[int] | None = None,
    ) -> State:
        """A state before its first token.

        Args:
            context: tokens that it may hold; None is what the checkpoint was trained for.
            window: served window: every block sees only the last so many positions, and a pinned prefix
                (:meth:`State.pin`). None is the checkpoint's own, 0 is none.
            depth: blocks that run, one of :attr:`depths`; None is all of them.
            blocks: numbers of the blocks that run, in place of a depth, where the bundle was exported with
                ``--elastic``: any set with both ends.

        Raises:
            InputError: one of them is out of its range, or both a depth and blocks are given.
            UnknownDepthError: the bundle does not run at that depth.
            UnknownBlocksError: the bundle cannot run these blocks.
        """
        if blocks is not None and depth is not None:
            raise InputError(f"depth is {depth!r}, and blocks are {list(blocks)!r}: give one of them.")
        rung = self._rungs[depth] if blocks is None else self._rungs.keeping(blocks)
        return self._state(rung, context, window)

    def _state(self, rung: Rung, context: int | None, window: int | None) -> State:
        context = self.bundle.context if context is None else context
        window = self.bundle.kv_window if window is None else window
        if context < 1 or window < 0:
            message = f"context is {context!r}, window {window!r}: give 1 or more, and 0 or more."
            raise InputError(message)
        return State(rung.decoder, context, window, self._chunk)

    def load_state(self, path: str | Path, context: int | None = None) -> State:
        """Read what :meth:`State.save` wrote.

        A state of blocks that are no rung is known again after a state of the same blocks was made.

        Raises:
            StateFileError: the file holds no state, or one longer than ``context``.
            ForeignStateError: it was saved with another bundle.
        """
        saved = read_state(Path(path))
        rung = self._rungs.of(saved.identity)
        if rung is None:
            raise self._foreign(f"{path}")
        state = self._state(rung, context, saved.window)
        if len(saved.ids) > state.context:
            message = (
                f"{path}: holds {len(saved.ids)} tokens, and context is {state.context}. Load it with more."
            )
            raise StateFileError(message)
        try:
            state.restore(saved)
        except (ValueError, LookupError) as error:
            raise StateFileError(f"{path}: is damaged ({error}). Prefill again, and save.") from error
        return state

    def prefill(self, state: State, prompt: str | Ids) -> Logits:
        """Feed a prompt.

        Args:
            state: of this bundle.
            prompt: token ids [T], or a text, which gets ``bos`` before it at the start of a sequence.

        Returns:
            Logits [V] float32 after the last token.

        Raises:
            ForeignStateError: the state belongs to another bundle.
            TokenIdError: an id is outside the vocabulary, or there is none.
            PromptTooLongError: the prompt does not fit in what is left of the context.
            BusyStateError: another thread uses the state.
        """
        if state.identity not in self._rungs:
            raise self._foreign("the state")
        ids: Ids = self.encode(prompt, bos=state.position == 0) if isinstance(prompt, str) else prompt
        return state.advance(ids)

    def step(self, state: State, token: int) -> Logits:
        """Feed one token.

        Returns:
            Logits [V] float32 after it.

        Raises:
            ContextFullError: there is no room for it.
            DeviceError: as :meth:`prefill`.
        """
        return self.prefill(state, [token])

    def generate(
        self,
        prompt: str | Ids,
        state: State | None = None,
        *,
        depth: int | None = None,
        sampling: Sampling | None = None,
        max_tokens: int = 256,
        stop: Sequence[str] = (),
        stop_pieces: Sequence[str] = (),
        constraint: Constraint | None = None,
        draft: int | Speculation | None = None,
        drafter: State | None = None,
        guess: Sequence[int] = (),
    ) -> Generation:
        """Answer a prompt, streaming.

        Args:
            prompt: as :meth:`prefill` takes it; it is prefilled before this returns.
            state: to go on with; None starts a new one.
            depth: of the new state; None is the deepest, or the given state's own.
            sampling: how to choose; None is greedy.
            max_tokens: of the answer.
            stop: strings that end it.
            stop_pieces: pieces of the vocabulary that end it, besides the end of the sequence.
            constraint: what to admit.
            draft: depth that drafts tokens, for the state's to check several in one call; None is none.
            drafter: a state at that depth, which holds the beginning of the same tokens; None is a new one.
            guess: tokens that may well be the answer: checked in few calls, and of no influence on it.

        Returns:
            An iterator over pieces of text; ids, text, finish reason and usage are its attributes.

        Raises:
            UnknownDepthError: the bundle does not run at that depth.
            InputError: the state given runs at another, or the drafter does not fit.
            UnavailableError: a draft is asked for, and the bundle has no second depth, or its graph gives
                no more than the last position's logits.
        """
        state = self.state(depth=depth) if state is None else state
        if depth not in {None, state.depth}:
            message = f"depth is {depth!r}, and the state given runs at {state.depth}: give one of the two."
            raise InputError(message)
        # Ids alone need no tokenizer.
        text = self.text if self.bundle.tokenizer or stop or stop_pieces or isinstance(prompt, str) else None
        stops = Stops(
            max_tokens=max_tokens,
            ids=stop_ids(text, self.bundle.tokens.eos, stop_pieces),
            strings=tuple(stop),
        )
        speculation = Speculation(depth=draft) if isinstance(draft, int) else draft
        if speculation is not None:
            speculation.check(state, self.depths)
            drafter = drafter or self.state(state.context, window=state.window, depth=speculation.depth)
        elif len(guess):
            state.require_logits()
        before, start = state.position, time.perf_counter()
        chosen_by = (state, self.prefill(state, prompt), Sampler(sampling or Sampling()), constraint)
        if speculation is None and not len(guess):
            decoding = Decoding(*chosen_by)
        else:
            decoding = Speculative(
                *chosen_by, stops=stops.ids, drafter=drafter, speculation=speculation, guess=guess
            )
        spent = (state.position - before, time.perf_counter() - start)
        return Generation(decoding, text, stops, spent)

    def prefix(
        self,
        tools: Sequence[Schema | Tool],
        system: str = "",
        *,
        context: int | None = None,
        window: int | None = None,
        depth: int | None = None,
    ) -> State:
        """A state that holds the offered tools, pinned, for :meth:`call`; it can be saved."""
        state = self.state(context, window=window, depth=depth)
        ids = self.encode(render_prefix(read_tools(tools), system), bos=True)
        state.pin(len(ids))
        self.prefill(state, ids)
        return state

    def holds_prefix(self, state: State, tools: Sequence[Schema | Tool], system: str = "") -> bool:
        """Whether a state is what :meth:`prefix` makes of these tools."""
        wanted = self.encode(render_prefix(read_tools(tools), system), bos=True)
        return state.identity in self._rungs and state.ids.tolist() == wanted

    def conversation(
        self,
        tools: Sequence[Schema | Tool],
        system: str = "",
        *,
        prefix: State | None = None,
        context: int | None = None,
        window: int | None = None,
    ) -> Conversation:
        """Start a conversation over some tools.

        Args:
            tools: as :func:`runtime_py.tools.read_tools` takes them.
            system: an instruction that goes first.
            prefix: what :meth:`prefix` made of the same, for its depth; others are made, and kept.
            context: as of :meth:`state`.
            window: as of :meth:`state`.
        """
        declared = read_tools(tools)
        if prefix is not None:
            if prefix.identity not in self._rungs:
                raise self._foreign("the prefix")
            if self._rungs[prefix.depth].bundle.identity != prefix.identity:
                raise InputError("the prefix is of blocks that are no rung: make it at one of the depths.")
            context, window = prefix.context, prefix.window

        def prefix_at(depth: int) -> State:
            if prefix is not None and prefix.depth == depth:
                return prefix
            key = (render_prefix(declared, system), context, window)
            return self._prefixes.fork(
                key, depth, lambda: self.prefix(declared, system, context=context, window=window, depth=depth)
            )

        usual = self.depths[-1] if prefix is None else prefix.depth
        return Conversation(self, declared, system, prefix_at, usual)

    def call(
        self,
        query: str,
        tools: Sequence[Schema | Tool],
        *,
        system: str = "",
        prefix: State | None = None,
        context: int | None = None,
        window: int | None = None,
        top_tools: int | None = None,
        depth: int | str | Climb | None = None,
        draft: int | Speculation | None = None,
        asking: Asking | None = None,
    ) -> Answer:
        """Answer a query with calls of the offered tools.

        Args:
            query: what the user said.
            tools: as :func:`runtime_py.tools.read_tools` takes them.
            system: an instruction that goes first.
            prefix: as of :meth:`conversation`.
            context: tokens of prompt and answer; None is what the checkpoint was trained for.
            window: as of :meth:`state`.
            top_tools: offer only so many, the nearest to the query; None offers all.
            depth: as of :class:`Asking`, over which it goes.
            draft: likewise.
            asking: how to answer; None is greedily, constrained where llguidance is installed.

        Raises:
            DeviceError: of the class that names the cause.
        """
        declared = read_tools(tools)
        if top_tools is not None:
            declared = self.nearest_tools(query, declared, top_tools)
        conversation = self.conversation(declared, system, prefix=prefix, context=context, window=window)
        asking = asking or Asking()
        asking = asking if depth is None else replace(asking, depth=depth)
        asking = asking if draft is None else replace(asking, draft=draft)
        return conversation.ask(query, asking)

    def extract(self, text: str, schema: Schema, *, system: str = "", asking: Asking | None = None) -> Answer:
        """Fill one schema from a text: an answer of one call, whose arguments are what was found.

        Args:
            text: to read.
            schema: a tool, or a JSON Schema of an object, called by its ``title``.
            system: an instruction that goes first.
            asking: how to answer.
        """
        if isinstance(schema, dict) and not {"name", "function"} & schema.keys():
            schema = {"name": str(schema.get("title") or "extract"), "parameters": schema}
        settings = {**vars(asking or Asking()), "exactly_one": True}
        return self.call(text, [as_tool(schema)], system=system, asking=Asking(**settings))

    def confidence(self, answered: State | Ids, *, depth: int | None = None) -> float:
        """Probability that an answer is right.

        Args:
            answered: a state that holds, or ids [T] that are, ``bos``, prompt and answer, without ``eos``.
                A state costs no second pass where the bundle pools while decoding.
            depth: of the ladder that scores ids; a state is scored at its own.

        Raises:
            MissingHeadError: the bundle has no confidence head.
        """
        if not isinstance(answered, State):
            return self._confidence(self._rungs[depth], answered)
        rung = self._rung_of(answered)
        if answered.position and rung.heads.pools("confidence", answered.ids):
            return sigmoid(float(rung.heads.read("confidence", answered)[0]))
        return self._confidence(rung, answered.ids)

    def _confidence(self, rung: Rung, ids: Ids) -> float:
        if not rung.heads.scores("confidence") and rung.heads.pools("confidence", ids):
            # A rung without a scoring graph pools while it reads.
            state = State(rung.decoder, len(ids), 0, self._chunk)
            state.advance(ids)
            return sigmoid(float(rung.heads.read("confidence", state)[0]))
        return sigmoid(float(self._score("confidence", ids, rung)[0]))

    @property
    def has_confidence(self) -> bool:
        """Whether answers can be scored."""
        return "confidence" in self.bundle.heads

    def require_confidence(self) -> None:
        """Check that answers can be scored.

        Raises:
            MissingHeadError: the bundle has no confidence head.
        """
        self._rungs.deepest.heads.require("confidence")

    def is_pooled(self, state: State) -> bool:
        """Whether :meth:`confidence` of a state costs no second pass."""
        return self._rung_of(state).heads.pools("confidence", state.ids)

    def embed(self, text: str) -> Vector:
        """Embedding of a text, [width] float32 of length 1; compare two by their product.

        Raises:
            MissingHeadError: the bundle has no embedding head.
        """
        return self._score("embedding", self.encode(text, bos=True))

    def route(self, text: str) -> Vector:
        """Router logits of a text, [3] float32.

        Raises:
            MissingHeadError: the bundle has no router head.
        """
        return self._score("router", self.encode(text, bos=True))

    def nearest_tools(self, query: str, tools: Sequence[Schema | Tool], count: int) -> list[Tool]:
        """The ``count`` tools nearest to a query, in the order declared; embeddings of tools are kept.

        Raises:
            InputError: ``count`` is less than 1.
            MissingHeadError: the bundle has no embedding head.
        """
        if count < 1:
            raise InputError(f"{count!r} tools are asked for: give 1 or more.")
        declared = read_tools(tools)
        if len(declared) <= count:
            return declared
        for tool in declared:
            if tool.text not in self._embedded:
                self._embedded[tool.text] = self.embed(tool.text)
        index = ToolIndex(np.stack([self._embedded[tool.text] for tool in declared]))
        return [declared[number] for number in sorted(index.nearest(self.embed(query), count))]

    def _rung_of(self, state: State) -> Rung:
        """What a state belongs to.

        Raises:
            ForeignStateError: the state belongs to another bundle.
        """
        rung = self._rungs.of(state.identity)
        if rung is None:
            raise self._foreign("the state")
        return rung

    def _score(self, head: str, ids: Ids, rung: Rung | None = None) -> Vector:
        tokens: NDArray[Any] = np.asarray(ids)
        State.check_ids(tokens, self.bundle.vocabulary)
        return (rung or self._rungs.deepest).heads.score(head, [int(token) for token in tokens])

    def _foreign(self, what: str) -> ForeignStateError:
        message = (
            f"{what} belongs to another bundle than {self.bundle.name}. Make a state with this model, and "
            "prefill again."
        )
        return ForeignStateError(message)
