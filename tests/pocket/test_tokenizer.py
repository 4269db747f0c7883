"""The tokenizer, and its agreement with the SentencePiece model that it is made from."""

from __future__ import annotations

import itertools
import json
import random
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sentencepiece

from golden.pocket.data import examples
from golden.pocket.prompt import MARKERS, render_answer, render_prompt
from golden.pocket.tokenizer import TOKENIZER_PATH, TokenizerRecipe, convert, load, train

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokenizers import Tokenizer

_SMALL = TokenizerRecipe(vocab_size=700, examples=1500)
_ODD = 'aeoué ß▁\u0301\u200b\x00\t\n\r日本語🙂👩‍🚀0123.,:"{}[]<>|_/sS'
_ODD_PIECES = (*MARKERS, "</s>", "<s>", "<pad>", "<unk>", "<0x41>", "   ", '","arguments":{"', "}}]")


@cache
def _pair(folder: Path) -> tuple[Any, Tokenizer]:
    model = folder / "small.model"
    train(model, _SMALL)
    (folder / "tokenizer.json").write_text(json.dumps(convert(model)), encoding="utf-8")
    return sentencepiece.SentencePieceProcessor(model_file=str(model)), load(folder / "tokenizer.json")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Tokenizer]:
    return _pair(tmp_path_factory.mktemp("tokenizer"))


def _generated(count: int) -> Iterator[str]:
    for split in ("train", "test"):
        for example in itertools.islice(examples(split, 11), count):
            yield render_prompt(example.query, example.tools) + render_answer(example.calls)


def _odd(count: int) -> Iterator[str]:
    rng = random.Random(0)  # noqa: S311 - reproducible
    for _ in range(count):
        parts = [
            rng.choice(_ODD) if rng.random() < 0.8 else rng.choice(_ODD_PIECES)
            for _ in range(rng.randint(0, 20))
        ]
        yield "".join(parts)


def _same(pair: tuple[Any, Tokenizer], text: str) -> None:
    processor, tokenizer = pair
    ids = processor.encode(text)
    assert tokenizer.encode(text).ids == ids, text
    assert tokenizer.decode(ids, skip_special_tokens=False) == processor.decode(ids), text


def test_agrees_with_sentencepiece_on_generated_text(pair: tuple[Any, Tokenizer]) -> None:
    for text in _generated(1500):
        _same(pair, text)


def test_agrees_with_sentencepiece_on_odd_text(pair: tuple[Any, Tokenizer]) -> None:
    for text in _odd(5000):
        _same(pair, text)


def test_decodes_any_ids_as_sentencepiece_does(pair: tuple[Any, Tokenizer]) -> None:
    processor, tokenizer = pair
    rng = random.Random(1)  # noqa: S311 - reproducible
    # Byte pieces may spell no valid UTF-8, where the two differ in what they put instead.
    usable = [0, 1, 2, *range(4, 20), *range(20 + 256, 700)]
    for _ in range(1000):
        ids = rng.choices(usable, k=rng.randint(1, 12))
        assert tokenizer.decode(ids, skip_special_tokens=False) == processor.decode(ids)


def test_shipped_ids() -> None:
    tokenizer = load()
    assert tokenizer.get_vocab_size() == 1024
    controls = [tokenizer.id_to_token(index) for index in range(4)]
    assert controls == ["<pad>", "</s>", "<s>", "<unk>"]
    assert [tokenizer.token_to_id(marker) for marker in MARKERS] == list(range(4, 20))
    assert tokenizer.id_to_token(20) == "<0x00>"
    assert tokenizer.id_to_token(275) == "<0xFF>"


@pytest.mark.parametrize("marker", MARKERS)
def test_markers_are_single_pieces(marker: str) -> None:
    ids = load().encode(f"a{marker} b").ids
    assert ids.count(4 + MARKERS.index(marker)) == 1
    assert load().decode(ids, skip_special_tokens=False) == f"a{marker} b"


@pytest.mark.parametrize("control", ["<pad>", "</s>", "<s>", "<unk>"])
def test_typed_controls_are_plain_text(control: str) -> None:
    ids = load().encode(control).ids
    assert min(ids) >= 4
    assert load().decode(ids, skip_special_tokens=False) == control


def test_shipped_round_trip() -> None:
    tokenizer = load()
    for text in itertools.chain(_generated(300), _odd(500)):
        ids = tokenizer.encode(text).ids
        expected = text.replace("\u2581", " ")
        assert tokenizer.decode(ids, skip_special_tokens=False) == expected


def test_a_name_has_the_same_pieces_in_query_and_answer() -> None:
    tokenizer = load()
    for name in ("Anna", "Zebulon", "Reykjavik", "Mo"):
        own = tokenizer.encode(name).ids
        answer = tokenizer.encode(render_answer([{"name": "call", "arguments": {"to": name}}])).ids
        query = tokenizer.encode(f"call {name}<|im_end|>").ids
        for ids in (answer, query):
            assert any(ids[i : i + len(own)] == own for i in range(len(ids)))


def test_prompt_and_answer_join_without_retokenising() -> None:
    tokenizer = load()
    for example in itertools.islice(examples("test", 5), 200):
        prompt, answer = render_prompt(example.query, example.tools), render_answer(example.calls)
        joined = tokenizer.encode(prompt).ids + tokenizer.encode(answer).ids
        assert tokenizer.encode(prompt + answer).ids == joined


def test_training_is_reproducible(tmp_path: Path) -> None:
    contents = []
    for name in ("a.model", "b.model"):
        train(tmp_path / name, TokenizerRecipe(vocab_size=500, examples=300))
        contents.append(json.dumps(convert(tmp_path / name)))
    assert contents[0] == contents[1]


def test_shipped_file_has_no_foreign_settings() -> None:
    shipped = json.loads(TOKENIZER_PATH.read_text(encoding="utf-8"))
    assert shipped["model"]["byte_fallback"] is True
    assert shipped["pre_tokenizer"] is None
    assert shipped["post_processor"] is None
