"""The stored figures of quality: of the checkpoint that ships, of every depth, and what is measured anew."""

from __future__ import annotations

from dataclasses import replace

import pytest

from exporter.checkpoint import Checkpoint
from exporter.examples import HELD_OUT
from exporter.export import SHIPPED
from exporter.ladder import fingerprint, slice_ladder
from exporter.precision import PRECISIONS, RECOVERED
from exporter.quality import STORED, Quality, examples_described, read_quality, stored
from exporter.quality_run import quality_of
from exporter.quantize import SEARCH

QUALITY = SHIPPED.with_name(STORED)


@pytest.fixture(scope="module")
def quality() -> Quality:
    return read_quality(QUALITY)


def test_the_figures_are_of_the_shipped_checkpoint_and_its_examples(quality: Quality) -> None:
    asked = SHIPPED.with_name(HELD_OUT)
    assert quality.checkpoint == SHIPPED.name
    assert quality.examples == examples_described(asked, len(asked.read_text("utf-8").splitlines()))


@pytest.mark.parametrize("depth", range(2, 21))
def test_every_export_of_a_rung_finds_its_figures(depth: int) -> None:
    identity = fingerprint(slice_ladder(Checkpoint(SHIPPED), depth))
    schemes = [PRECISIONS["int8"], PRECISIONS["int4"], replace(PRECISIONS["int4"], quantiser=RECOVERED)]
    for scheme in schemes:
        assert stored(SHIPPED, identity, scheme) is not None


@pytest.mark.slow
def test_the_figures_are_found_again(quality: Quality) -> None:
    again = quality_of(checkpoint=SHIPPED, depths=[3], precisions=["int4"], quantisers=[SEARCH, RECOVERED])
    for row in again.figures:
        kept = quality.of(row.slice_sha256, row.scheme)
        assert kept is not None
        assert row.bits_per_byte == pytest.approx(kept.bits_per_byte, rel=1e-3)
        assert row.kl == pytest.approx(kept.kl, rel=1e-2, abs=1e-9)
        assert row.exact == pytest.approx(kept.exact, abs=1.5 / again.examples["count"])
