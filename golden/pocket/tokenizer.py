"""The pocket ladder's tokenizer: a SentencePiece BPE with byte fallback, and its tokenizer.json.

The SentencePiece model is trained on generated training data that is cut at spaces and at the edges of
JSON structure. So a space is always a piece of its own, a structure such as ``","arguments":{"`` is
one piece, and no piece joins a word to its quote: a name has the same pieces in a query and in an
answer, and copying it is copying tokens. Text is taken as it is: no normalisation, no space put
before it, no merging of spaces.

Run ``python -m golden.pocket.tokenizer --out DIR`` to train both files anew.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from golden.pocket.data import FIRST_STAGE, examples
from golden.pocket.prompt import BOS_ID, EOS_ID, MARKERS, PAD_ID, UNK_ID, render_answer, render_prompt

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["TOKENIZER_PATH", "TokenizerRecipe", "convert", "load", "train"]

TOKENIZER_PATH = Path(__file__).with_name("tokenizer.json")
"""The shipped tokenizer.json."""

SPACE = "\u2581"
_CONTROLS = ("<pad>", "</s>", "<s>", "<unk>")


@dataclass(frozen=True)
class TokenizerRecipe:
    """What decides the trained pieces.

    Attributes:
        vocab_size: pieces in all, the four controls, markers and 256 bytes among them.
        examples: how many generated examples are counted.
        seed: the seed of those examples.
    """

    vocab_size: int = 1024
    examples: int = 20_000
    seed: int = 101


_STRUCTURE = re.compile(
    r"""\[?,?\{"name":"|","(?:description|arguments|parameters)":\{?"?"""
    r"""|":\{"type":"(?:string|integer|boolean)"|\W+"""
)
"""What must not melt into its neighbours: keys with their quotes, and any other punctuation."""


def _words(recipe: TokenizerRecipe) -> Iterator[str]:
    for example in itertools.islice(examples("train", recipe.seed, FIRST_STAGE), recipe.examples):
        text = render_prompt(example.query, example.tools) + render_answer(example.calls)
        for marker in MARKERS:
            text = text.replace(marker, " ")
        for word in text.split():
            yield from filter(None, re.split(f"({_STRUCTURE.pattern})", word))


def train(path: Path, recipe: TokenizerRecipe = TokenizerRecipe()) -> None:
    """Train the SentencePiece model.

    Args:
        path: where the ``.model`` file goes.
        recipe: what decides the pieces.
    """
    import sentencepiece  # noqa: PLC0415 - only making a tokenizer needs it

    with path.open("wb") as writer:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_words(recipe),
            model_writer=writer,
            model_type="bpe",
            vocab_size=recipe.vocab_size,
            pad_id=PAD_ID,
            eos_id=EOS_ID,
            bos_id=BOS_ID,
            unk_id=UNK_ID,
            pad_piece=_CONTROLS[PAD_ID],
            eos_piece=_CONTROLS[EOS_ID],
            bos_piece=_CONTROLS[BOS_ID],
            unk_piece=_CONTROLS[UNK_ID],
            user_defined_symbols=list(MARKERS),
            required_chars=SPACE,
            byte_fallback=True,
            split_digits=True,
            split_by_unicode_script=False,
            split_by_number=False,
            max_sentencepiece_length=24,
            character_coverage=1.0,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            num_threads=1,
            minloglevel=2,
        )


def _merges(pieces: Sequence[str], scores: Sequence[float]) -> list[list[str]]:
    """List every way of building a piece out of two others, the better-scored piece first.

    SentencePiece joins the neighbours whose union scores best; a BPE with merges joins those whose
    merge stands first. All splits of one piece are listed together, since SentencePiece does not
    care how a piece came about.
    """
    known = set(pieces)
    order = sorted(range(len(pieces)), key=lambda index: (-scores[index], index))
    return [
        [pieces[index][:cut], pieces[index][cut:]]
        for index in order
        for cut in range(1, len(pieces[index]))
        if pieces[index][:cut] in known and pieces[index][cut:] in known
    ]


def convert(model: Path) -> dict[str, Any]:
    """Express a SentencePiece BPE model as the content of a tokenizer.json.

    The controls are ordinary vocabulary entries, not added tokens: a user who types ``</s>`` gets
    its characters, as in SentencePiece, and not the end of the sequence.

    Args:
        model: a ``.model`` file as ``train`` writes it.

    Returns:
        The JSON object that a ``tokenizers.Tokenizer`` reads.
    """
    import sentencepiece  # noqa: PLC0415 - only making a tokenizer needs it

    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    pieces = [processor.id_to_piece(index) for index in range(processor.get_piece_size())]
    first_normal = len(_CONTROLS) + len(MARKERS) + 256
    normal = pieces[first_normal:]
    scores = [processor.get_score(index) for index in range(first_normal, len(pieces))]
    drop_controls = [
        {"type": "Replace", "pattern": {"String": control}, "content": ""} for control in _CONTROLS
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": len(_CONTROLS) + index,
                "content": marker,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for index, marker in enumerate(MARKERS)
        ],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                *drop_controls,
                {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": _CONTROLS[UNK_ID],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {piece: index for index, piece in enumerate(pieces)},
            "merges": _merges(normal, scores),
        },
    }


@cache
def load(path: Path = TOKENIZER_PATH) -> Tokenizer:
    """Load a tokenizer.json; its ``decode`` keeps markers if ``skip_special_tokens`` is false."""
    return Tokenizer.from_file(str(path))


def main() -> None:
    """Train the tokenizer and write ``pocket.model`` and ``tokenizer.json``."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory of the two files")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    train(out / "pocket.model")
    text = json.dumps(convert(out / "pocket.model"), ensure_ascii=False, indent=1)
    (out / "tokenizer.json").write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(f"{out / 'tokenizer.json'}\n")


if __name__ == "__main__":
    main()
