"""What a session remembers: every cache of every kept block, and the way back."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime_py.caches import Caches
from runtime_py.carry import Bytes, Carry
from runtime_py.errors import (
    BusyStateError,
    ContextFullError,
    InputError,
    MissingLogitsError,
    PromptTooLongError,
    RewindError,
    StateError,
    TokenIdError,
)
from runtime_py.marks import Mark, Marks
from runtime_py.session import CACHED, Binding, Decoder, Logits
from runtime_py.statefile import SavedState, write_state

__all__ = ["Ids", "State"]

Ids = Sequence[int] | NDArray[np.integer]

_MARGIN: Final = 64
"""Rows that a window keeps for rewinding, and the most that a rewind by steps can count on."""


class State:
    """One sequence of tokens and what the graph needs to go on with it.

    Made by :meth:`runtime_py.model.Model.state`. Use it from one thread at a time.
    """

    def __init__(self, decoder: Decoder, context: int, window: int, chunk: int) -> None:
        """Set memory aside.

        Args:
            decoder: the graph.
            context: tokens that the state may hold.
            window: served window; 0 is none. See :meth:`pin`.
            chunk: tokens of a call to the graph at most.
        """
        self._decoder, self.bundle = decoder, decoder.bundle
        self.context, self.window, self.pinned = context, window, 0
        self._chunk = min(chunk, context)
        idle = [spec for spec in self.bundle.states if self.bundle.is_idle(spec)]
        active = [spec for spec in self.bundle.states if not self.bundle.is_idle(spec)]
        growing = [spec for spec in active if spec.grows is not None]
        kinds = {
            name: [spec for spec in growing if (spec.window == 0) == everywhere]
            for everywhere, name in CACHED.items()
        }
        self._caches = {
            name: Caches.sized(specs, context, self._chunk, _MARGIN) for name, specs in kinds.items() if specs
        }
        self._carry = Carry([spec for spec in active if spec.grows is None])
        self._binding = Binding(decoder, self._caches, self._carry, self._chunk, idle)
        self._ids = np.zeros(context, np.int32)
        self._starts = np.zeros(context, np.bool_)
        """Where calls of the graph began: calls cut otherwise sum in another order."""
        self.position = 0
        """Tokens that the state holds; not to be set."""
        self._marks = Marks(self._caches)
        self._lock = threading.Lock()
        self.reset()

    @property
    def identity(self) -> str:
        """What the state belongs to."""
        return self.bundle.identity

    @property
    def depth(self) -> int:
        """Blocks that run."""
        return self.bundle.depth

    @property
    def chunk(self) -> int:
        """Tokens that one call of the graph may take now, if they fit; one once a served window is full."""
        return self._size(self._chunk)

    @property
    def ids(self) -> NDArray[np.int32]:
        """The tokens so far, [position]."""
        return self._ids[: self.position].copy()

    @property
    def room(self) -> int:
        """Tokens that still fit."""
        return self.context - self.position

    @property
    def rows(self) -> dict[str, int]:
        """Positions that the caches hold now, by the graph's input that says so."""
        return {name: caches.filled for name, caches in self._caches.items()}

    @property
    def nbytes(self) -> int:
        """Bytes set aside; those of the caches are taken from the system as they fill."""
        arrays = [array for caches in self._caches.values() for array in caches.arrays.values()]
        return sum(array.nbytes for array in arrays) + 2 * self._carry.nbytes

    @property
    def rewindable(self) -> int:
        """The most tokens that :meth:`rewind` can take back now."""
        usable = self._marks.usable
        return self.position - usable[0].position if usable else 0

    def present(self) -> dict[str, NDArray[Any]]:
        """Copies of the states of constant shape, by the names that the graph gives them."""
        views = self._carry.views[self._carry.side]
        return {spec.present: views[spec.past].copy() for spec in self._carry.specs}

    def reset(self) -> None:
        """Go back to before the first token."""
        with self._exclusively():
            for caches in self._caches.values():
                caches.clear()
            self._carry.clear()
            self.position = self.pinned = 0
            self._marks.kept = [self._marked()]

    def fork(self) -> State:
        """A copy that goes its own way; only what is filled is copied."""
        with self._exclusively():
            other = State(self._decoder, self.context, self.window, self._chunk)
            for name, caches in self._caches.items():
                caches.copy_into(other._caches[name])
            other._take_over(self._carry.take(), self._ids[: self.position], self.pinned)
            other._marks.kept = list(self._marks.kept)
            other._starts[: self.position] = self._starts[: self.position]
            return other

    def pin(self, count: int | None = None) -> None:
        """Keep the first tokens visible for good, whatever the served window is.

        Args:
            count: how many; None is all so far. A prefix longer than the window is pinned before its prefill.

        Raises:
            StateError: the served window let go of some already.
        """
        with self._exclusively():
            if not all(caches.ordered for caches in self._caches.values()):
                message = (
                    f"the served window of {self.window} has let go of tokens before position "
                    f"{self.position}. Pin a prefix before its prefill."
                )
                raise StateError(message)
            self.pinned = self.position if count is None else count

    def rewind(self, count: int) -> None:
        """Take back the last ``count`` tokens.

        Fewer than a stride of tokens is computed again, more where they came in one long prefill: in the
        same calls as before, so that the state is bit for bit what it was where it once stood there and has
        not let go of rows since.

        Raises:
            RewindError: the windows no longer hold what came before; see :attr:`rewindable`.
        """
        if count == 0:
            return
        with self._exclusively():
            target = self.position - count
            mark = self._marks.before(target)
            if mark is None or count < 0:
                message = (
                    f"{count} tokens cannot be taken back: {self.rewindable} of {self.position} can. Fork "
                    "the state before a branch, or reset it and prefill again."
                )
                raise RewindError(message)
            pieces = self._calls_between(mark.position, target)
            with self._undone_on_failure(dropping=False):
                self._set_back(mark)
                for piece in pieces:
                    self._call(piece)
            self._marks.forget_after(target)

    def mark(self) -> Mark:
        """What :meth:`go_back` returns to; it costs a copy of what has a constant shape."""
        with self._exclusively():
            return self._marked()

    def go_back(self, mark: Mark) -> None:
        """Return to a mark of this state, bit for bit; nothing is computed.

        Raises:
            RewindError: the windows no longer hold what came before.
        """
        with self._exclusively():
            held = all(caches.holds(mark.position) for caches in self._caches.values())
            if not held or not np.array_equal(self._ids[: self.position][: mark.position], mark.ids):
                message = (
                    f"the mark at position {mark.position} is no part of the state at {self.position} any "
                    "more. Go back before the windows move on, or fork the state."
                )
                raise RewindError(message)
            self._set_back(mark)
            self._marks.forget_after(mark.position)

    def save(self, path: str | Path) -> None:
        """Write the state to a file, replacing it as one step.

        Raises:
            StateFileError: it cannot be written.
        """
        with self._exclusively():
            caches = {
                name: (c.rows(), c.positions[: c.filled], c.ordered) for name, c in self._caches.items()
            }
            saved = SavedState(
                identity=self.identity,
                window=self.window,
                pinned=self.pinned,
                ids=self._ids[: self.position],
                carry=self._carry.take(),
                caches=caches,
            )
            write_state(Path(path), saved)

    def restore(self, saved: SavedState) -> None:
        """Take over what :meth:`save` wrote, of the same bundle."""
        with self._exclusively():
            for name, (rows, positions, ordered) in saved.caches.items():
                self._caches[name].fill(rows, positions, ordered=ordered)
            self._take_over(saved.carry, saved.ids, saved.pinned)
            self._marks.kept.append(self._marked())

    def advance(self, ids: Ids) -> Logits:
        """Feed tokens, in as many calls of the graph as it takes.

        Args:
            ids: [T], at least one.

        Returns:
            Logits [V] float32 after the last token.

        Raises:
            TokenIdError: an id is outside the vocabulary, or there is none.
            PromptTooLongError: more than one token, and not all of them fit.
            ContextFullError: one token, and it does not fit.
            BusyStateError: another thread uses the state.
        """
        tokens = self.check_ids(ids, self.bundle.vocabulary)
        with self._exclusively():
            self._check_room(len(tokens))
            if len(tokens) == 1:
                return np.asarray(self._call(tokens)[-1])
            with self._undone_on_failure(dropping=self._would_drop(len(tokens))):
                return self._feed(tokens)

    def verify(self, ids: Ids, count: int) -> Logits:
        """Feed tokens in one call of the graph, and give the logits after each of the last ``count``.

        Args:
            ids: [T], at least one, and :attr:`chunk` at most.
            count: 1 to T.

        Returns:
            Logits [count, V] float32.

        Raises:
            InputError: there are more tokens than one call may take, or fewer than ``count``.
            MissingLogitsError: the graph gives the last position's alone, and ``count`` is more than 1.
            DeviceError: as :meth:`advance`.
        """
        tokens = self.check_ids(ids, self.bundle.vocabulary)
        if count > 1:
            self.require_logits()
        if not 1 <= count <= len(tokens) <= self.chunk:
            message = (
                f"logits of {count!r} positions are asked for, of {len(tokens)} tokens in one call: give "
                f"{self.chunk} tokens at most now, and ask for as many positions or fewer."
            )
            raise InputError(message)
        with self._exclusively():
            self._check_room(len(tokens))
            return self._call(tokens, count)

    def require_logits(self) -> None:
        """Check that the graph gives the logits of several positions.

        Raises:
            MissingLogitsError: it gives the last position's alone.
        """
        if self.bundle.logits == "last":
            message = (
                f"{self.bundle.name}: its graph gives the logits of the last position only, and a draft is "
                "checked by several. Export the ladder with several depths, or with --all-logits."
            )
            raise MissingLogitsError(message)

    @staticmethod
    def check_ids(ids: Ids, vocabulary: int) -> NDArray[np.int64]:
        """Ids as the graph takes them, [T]; it would give zeros for those outside, and say nothing.

        Raises:
            TokenIdError: an id is outside the vocabulary, or there is none.
        """
        tokens = np.asarray(ids)
        if tokens.ndim != 1 or not tokens.size or tokens.dtype.kind not in "iu":
            message = f"{ids!r:.80}: is no list of token ids. Give at least one id, as integers."
            raise TokenIdError(message)
        outside = np.flatnonzero((tokens < 0) | (tokens >= vocabulary))
        if outside.size:
            message = (
                f"token id {tokens[outside[0]]} at index {outside[0]} is outside the vocabulary, 0 to "
                f"{vocabulary - 1}. Encode the text with the bundle's own tokenizer."
            )
            raise TokenIdError(message)
        return tokens.astype(np.int64)

    def _check_room(self, count: int) -> None:
        if count <= self.room:
            return
        if count == 1:
            message = f"the context of {self.context} tokens is full. Reset the state, or make a larger one."
            raise ContextFullError(message)
        message = (
            f"{count} tokens do not fit: {self.room} of the context's {self.context} are left. Shorten the "
            "prompt, offer fewer tools, or make a state with more context."
        )
        raise PromptTooLongError(message)

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        if not self._lock.acquire(blocking=False):
            message = (
                "the state is in use by another thread. Give each thread a state (or a fork) of its own."
            )
            raise BusyStateError(message)
        try:
            yield
        finally:
            self._lock.release()

    @contextmanager
    def _undone_on_failure(self, *, dropping: bool) -> Iterator[None]:
        """Several calls as one: where one fails, the state is as it was before the first.

        Args:
            dropping: whether rows will be let go, which then are copied beforehand.
        """
        ids, carry, pinned, marks = (
            self._ids[: self.position].copy(),
            self._carry.take(),
            self.pinned,
            list(self._marks.kept),
        )
        filled = {name: caches.filled for name, caches in self._caches.items()}
        copies = {name: caches.clone() for name, caches in self._caches.items() if dropping}
        try:
            yield
        except BaseException:
            for name, caches in self._caches.items():
                if dropping:
                    copies[name].copy_into(caches)
                # Rows behind a truncation are there still: a rewind only writes the same again.
                caches.filled = filled[name]
            self._take_over(carry, ids, pinned)
            self._marks.kept = marks
            raise

    def _feed(self, tokens: NDArray[np.int64]) -> Logits:
        """Call the graph chunk by chunk."""
        logits = np.empty(0, np.float32)
        while len(tokens):
            size = self._size(len(tokens))
            logits, tokens = self._call(tokens[:size])[-1], tokens[size:]
        return logits

    def _calls_between(self, start: int, stop: int) -> list[NDArray[np.int64]]:
        """The tokens of some positions, cut into calls where they were before."""
        tokens = self._ids[start:stop].astype(np.int64)
        pieces = np.split(tokens, np.flatnonzero(self._starts[start:stop]))
        return [piece for piece in pieces if len(piece)]

    def _size(self, count: int) -> int:
        """Tokens that the next call may take.

        Past the served window it is one: a call's tokens all see the same rows.
        """
        unbroken = self.pinned + self.window - self.position if self.window else count
        if not all(caches.ordered for caches in self._caches.values()):
            unbroken = 1
        return max(1, min(count, self._chunk, unbroken))

    def _call(self, tokens: NDArray[np.int64], kept: int = 1) -> Logits:
        """Call the graph once, and count what it wrote; returns the last positions' logits [kept, V]."""
        count = len(tokens)
        if self._marks.is_due(self.position, count):
            self._marks.add(self._marked())
        for caches in self._caches.values():
            if self.window and self.position + 1 > self.pinned + self.window:
                caches.retain(self.position, self.window, self.pinned)
            caches.make_room(count)
        logits = self._binding.run(tokens, self.position, kept)
        for caches in self._caches.values():
            caches.append(count, self.position)
        self._carry.flip()
        self._ids[self.position : self.position + count] = tokens
        self._starts[self.position : self.position + count] = np.arange(count) == 0
        self.position += count
        return logits

    def _would_drop(self, count: int) -> bool:
        if self.window and self.position + count > self.pinned + self.window:
            return True
        return any(caches.would_drop(count) for caches in self._caches.values())

    def _take_over(self, carry: Bytes, ids: NDArray[np.integer], pinned: int) -> None:
        self._carry.put(carry)
        self._ids[: len(ids)] = ids
        self.position, self.pinned = len(ids), pinned

    def _marked(self) -> Mark:
        return Mark(self.position, self._carry.take(), self.ids)

    def _set_back(self, mark: Mark) -> None:
        for caches in self._caches.values():
            caches.truncate(mark.position)
        self._carry.put(mark.carry)
        self.position = mark.position
