"""Text to token ids and back, a piece at a time."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime_py.bundle import Bundle
from runtime_py.errors import MissingPackageError, MissingTokenizerError

if TYPE_CHECKING:
    import tokenizers

__all__ = ["StopStrings", "Text", "TextStream"]

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_LEVELS = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
"""Bytes that a byte-level vocabulary writes as the character of their own number."""


class Text:
    """The bundle's tokenizer."""

    def __init__(self, path: Path) -> None:
        """Load a ``tokenizer.json``.

        Raises:
            MissingPackageError: tokenizers is not installed.
            MissingTokenizerError: the file is none that it reads.
        """
        try:
            from tokenizers import Tokenizer  # noqa: PLC0415 - ids need no tokenizer
        except ImportError as error:
            message = "text needs the package tokenizers. Run: pip install tokenizers. Or give token ids."
            raise MissingPackageError(message) from error
        try:
            self.document = path.read_text("utf-8")
            self._tokenizer: tokenizers.Tokenizer = Tokenizer.from_str(self.document)
        except Exception as error:  # tokenizers raises no narrower class
            message = f"{path}: cannot be read as a tokenizer ({error}). Export the bundle again."
            raise MissingTokenizerError(message) from error
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def of(cls, bundle: Bundle) -> Text:
        """The tokenizer of a bundle.

        Raises:
            MissingTokenizerError: it has none.
        """
        if bundle.tokenizer is None:
            message = (
                f"{bundle.folder}: has no tokenizer. Give token ids, or export it again with --tokenizer."
            )
            raise MissingTokenizerError(message)
        return cls(bundle.tokenizer)

    def encode(self, text: str) -> list[int]:
        """Ids of a text; markers such as ``<tools>`` are one id each, and nothing is put before it."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; what is no UTF-8 becomes U+FFFD."""
        return b"".join(map(self.bytes_of, ids)).decode("utf-8", "replace")

    def id_of(self, piece: str) -> int | None:
        """Id of a piece, None where the vocabulary lacks it."""
        return self._tokenizer.token_to_id(piece)

    def bytes_of(self, token: int) -> bytes:
        """What a token adds to a text, as bytes: part of a character at times."""
        if token not in self._bytes:
            self._bytes[token] = self._find_bytes(token)
        return self._bytes[token]

    def _find_bytes(self, token: int) -> bytes:
        piece = self._tokenizer.id_to_token(token)
        if piece is None:
            return b""
        byte = _BYTE.fullmatch(piece)
        if byte and "ByteFallback" in self._decoders:
            return bytes([int(byte[1], 16)])
        if "ByteLevel" in self._decoders and token not in self._added:
            return bytes(self._levels[character] for character in piece)
        # Behind another piece, since decoders may strip the space that starts a text.
        both = self._tokenizer.decode([self._anchor, token], skip_special_tokens=False)
        return both.removeprefix(self._tokenizer.decode([self._anchor], skip_special_tokens=False)).encode()

    @cached_property
    def _parsed(self) -> dict[str, Any]:
        return dict(json.loads(self.document))

    @cached_property
    def _decoders(self) -> set[str]:
        decoder = self._parsed.get("decoder") or {}
        return {part["type"] for part in [decoder, *decoder.get("decoders", [])] if "type" in part}

    @cached_property
    def _added(self) -> set[int]:
        return {token["id"] for token in self._parsed.get("added_tokens", [])}

    @cached_property
    def _anchor(self) -> int:
        """A piece of plain text."""
        found = self.encode("a")
        return found[-1]

    @cached_property
    def _levels(self) -> dict[str, int]:
        """Bytes by the characters that a byte-level vocabulary writes them with."""
        others = [byte for byte in range(256) if byte not in _LEVELS]
        return {chr(byte): byte for byte in _LEVELS} | {chr(256 + n): byte for n, byte in enumerate(others)}


class TextStream:
    """Text of tokens as they come, never half a character."""

    def __init__(self, text: Text) -> None:
        """Start an empty text."""
        self._text = text
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """What has become certain with ``token``."""
        return self._decoder.decode(self._text.bytes_of(token))

    def close(self) -> str:
        """What is left; half a character becomes U+FFFD."""
        return self._decoder.decode(b"", final=True)


class StopStrings:
    """Text up to the first of some strings, holding back what may be the beginning of one."""

    def __init__(self, strings: Sequence[str]) -> None:
        """Look for ``strings``; empty ones would stop at once and are left out."""
        self._strings = [string for string in strings if string]
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """What of the text so far is certain to stand before every stop string."""
        if self.found:
            return ""
        whole = self._held + text
        starts = [start for string in self._strings if (start := whole.find(string)) >= 0]
        if starts:
            self.found, self._held = True, ""
            return whole[: min(starts)]
        longest = max((_overlap(whole, string) for string in self._strings), default=0)
        cut = len(whole) - longest
        self._held = whole[cut:]
        return whole[:cut]

    def close(self) -> str:
        """What was held back."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, string: str) -> int:
    """Length of the longest end of ``text`` that begins ``string``."""
    longest = min(len(text), len(string) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(string[:n])), 0)
