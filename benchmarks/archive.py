"""Writes the Rust port's file of a checkpoint: ``python benchmarks/archive.py CHECKPOINT FILE.cact``.

The upstream package quantises and packs it; the tokenizer is the shipped ladder's, trained anew.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import sentencepiece
from needle.model.export import _tokenizer_blob, write_export
from needle.model.quantize import WEIGHT_BITS
from needle.model.run import load_checkpoint

from golden.pocket.tokenizer import train


def main(checkpoint: Path, archive: Path) -> None:
    """Pack a checkpoint."""
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch) / "tokenizer.model"
        train(model)
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(model))
    params, config, _ = load_checkpoint(str(checkpoint), return_run=True)
    tokenizer = _tokenizer_blob(SimpleNamespace(sp=pieces))
    write_export(params, config, str(archive), bits=WEIGHT_BITS, tokenizer=tokenizer)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
