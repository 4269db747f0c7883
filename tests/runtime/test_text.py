"""Text in pieces: whole characters, and nothing of a stop string."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.pocket.tokenizer import TOKENIZER_PATH, load
from runtime_py.bundle import Bundle
from runtime_py.errors import MissingTokenizerError
from runtime_py.text import StopStrings, Text, TextStream

TEXT = Text(TOKENIZER_PATH)
any_ids = st.lists(st.integers(0, 1023), max_size=30)
any_text = st.text(max_size=40)


def streamed(ids: list[int]) -> list[str]:
    stream = TextStream(TEXT)
    return [*(stream.push(token) for token in ids), stream.close()]


@given(any_text)
def test_text_comes_back(text: str) -> None:
    # The tokenizer writes a space as this character, and reads it as one.
    text = text.replace("\u2581", "").encode("utf-8", "ignore").decode()
    ids = TEXT.encode(text)
    assert TEXT.decode(ids) == text
    assert "".join(streamed(ids)) == text


@given(any_text)
def test_every_piece_is_whole_characters(text: str) -> None:
    text = text.encode("utf-8", "ignore").decode()
    assert not any("\ufffd" in piece for piece in streamed(TEXT.encode(text.replace("\ufffd", ""))))


@given(any_ids)
def test_pieces_of_any_ids_make_their_text(ids: list[int]) -> None:
    assert "".join(streamed(ids)) == TEXT.decode(ids)


@given(any_ids)
def test_agrees_with_tokenizers_where_bytes_are_whole(ids: list[int]) -> None:
    ids = [token for token in ids if not 20 <= token < 276]
    assert TEXT.decode(ids) == load().decode(ids, skip_special_tokens=False)


def test_an_emoji_comes_at_once() -> None:
    ids = TEXT.encode("a🙂b")
    assert len(ids) == 6
    assert [piece for piece in streamed(ids) if piece] == ["a", "🙂", "b"]


def test_half_a_character_at_the_end() -> None:
    assert streamed(TEXT.encode("é")[:1]) == ["", "\ufffd"]


def test_byte_level_vocabularies(tmp_path: Path) -> None:
    alphabet = {"Ġ": 0, "a": 1, "Ã": 2, "©": 3, "<end>": 4}
    document = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": 4,
                "content": "<end>",
                "special": True,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
            }
        ],
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": True,
        },
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": alphabet, "merges": []},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    text = Text(tmp_path / "tokenizer.json")
    assert text.encode("a é") == [1, 0, 2, 3]
    assert text.decode([1, 0, 2, 3, 4]) == "a é<end>"
    assert [text.bytes_of(token) for token in (2, 3)] == [b"\xc3", b"\xa9"]


stops = st.lists(st.text("ab<", min_size=1, max_size=4), min_size=1, max_size=3)


@given(st.lists(st.text("ab<", max_size=3), max_size=12), stops)
def test_stops_before_the_first_stop_string(pieces: list[str], strings: list[str]) -> None:
    watch, shown = StopStrings(strings), ""
    for piece in pieces:
        shown += watch.push(piece)
        # Nothing that was shown has to be taken back.
        assert not any(string in shown for string in strings)
    whole = "".join(pieces)
    starts = [whole.find(string) for string in strings if string in whole]
    assert watch.found == bool(starts)
    # Of strings that end together in one piece, the one that starts first counts.
    shown += watch.close()
    assert shown == whole[: min(starts)] if starts else shown == whole


def test_without_stop_strings_nothing_is_held_back() -> None:
    watch = StopStrings(["", "zz"])
    assert watch.push("ab") == "ab"


def test_a_bundle_without_tokenizer(bundle: Path) -> None:
    plain = Bundle.load(bundle)
    with pytest.raises(MissingTokenizerError, match="--tokenizer"):
        Text.of(type(plain)(**{**vars(plain), "tokenizer": None}))


def test_a_tokenizer_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(MissingTokenizerError, match="cannot be read as a tokenizer"):
        Text(tmp_path / "tokenizer.json")
