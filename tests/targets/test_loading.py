"""Finding and reading profiles."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

import pytest

import targets
from tests.targets.documents import PACKAGE

if TYPE_CHECKING:
    from pathlib import Path

    from tests.targets.documents import Write


def test_names_lists_every_device_class() -> None:
    assert targets.names() == ("android", "host", "rpi-zero2w", "rpi4", "rpi5", "wearos", "wearos-32")


@pytest.mark.parametrize("name", targets.names())
def test_a_profile_is_called_like_its_file(name: str) -> None:
    assert targets.load(name).name == name


@pytest.mark.parametrize("name", targets.names())
def test_devices_default_to_four_bits_and_the_host_to_float32(name: str) -> None:
    expected = "fp32" if name == "host" else "int4"
    assert targets.load(name).precision.default == expected


@pytest.mark.parametrize("name", targets.names())
def test_the_graph_fits_every_runtime_from_the_floor_on(name: str) -> None:
    # Measured: opset 21 and IR 10 are what the oldest runtimes read.
    runtime = targets.load(name).onnxruntime
    assert (runtime.opset, runtime.ir_version) == (21, 10)


def test_the_cores_of_a_device_are_in_its_profile() -> None:
    cores = {name: [cpu.name for cpu in targets.load(name).cpus] for name in targets.names()}
    assert cores == {
        "android": ["cortex-a53", "cortex-a55", "cortex-a76", "cortex-a710"],
        "host": [],
        "rpi-zero2w": ["cortex-a53"],
        "rpi4": ["cortex-a72"],
        "rpi5": ["cortex-a76"],
        "wearos": ["cortex-a53", "cortex-a55"],
        "wearos-32": ["cortex-a7"],
    }


def test_programs_are_64_bit_but_for_the_watches_that_are_not() -> None:
    found = {name: targets.load(name).architecture for name in targets.names()}
    assert {name for name, kind in found.items() if kind == "any"} == {"host"}
    assert {name for name, kind in found.items() if kind == "armv7"} == {"wearos-32"}
    assert set(found.values()) == {"any", "armv7", "arm64"}


@pytest.mark.parametrize("name", targets.names())
def test_every_device_has_a_whole_budget_and_the_host_none(name: str) -> None:
    budget = targets.load(name).budget
    if name == "host":
        assert budget is None
    else:
        assert budget is not None
        assert None not in (budget.storage, budget.memory, budget.context)


def test_a_budget_is_argued_for_above_it() -> None:
    for name in set(targets.names()) - {"host"}:
        above, _, _ = (PACKAGE / f"{name}.toml").read_text(encoding="utf-8").partition("[budget]")
        argument = above.rpartition("\n\n")[2]
        assert argument.startswith("# "), name
        assert re.search(r"\d+ [MG]B", argument), name


def test_smaller_devices_allow_less() -> None:
    order = ["wearos-32", "wearos", "rpi-zero2w", "android", "rpi4"]
    budgets = [targets.load(name).budget or targets.Budget() for name in order]
    memory = [budget.memory or 0 for budget in budgets]
    assert memory == sorted(set(memory))


@pytest.mark.parametrize(("name", "archive"), [("rpi4", "tar.gz"), ("wearos", "aar"), ("android", "aar")])
def test_boards_unpack_an_archive_and_apps_depend_on_a_library(name: str, archive: str) -> None:
    assert targets.load(name).archive == archive


def test_a_core_has_the_same_facts_in_every_profile() -> None:
    facts: dict[str, set[targets.CpuClass]] = {}
    for name in targets.names():
        for cpu in targets.load(name).cpus:
            facts.setdefault(cpu.name, set()).add(cpu)
    assert {core: len(versions) for core, versions in facts.items()} == dict.fromkeys(facts, 1)


def test_load_reads_a_path_from_the_current_directory(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(lambda document: document | {"name": "mine"})
    monkeypatch.chdir(path.parent)
    assert targets.load(f"./{path.name}").name == "mine"
    assert targets.load(path).name == "mine"


def test_the_projects_profiles_are_found_from_any_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert targets.load("rpi4").name == "rpi4"


def test_a_name_wins_over_a_file_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rpi4").write_text("name = 'other'", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert targets.load("rpi4").name == "rpi4"


def test_a_target_is_frozen_and_hashable() -> None:
    target = targets.load("rpi4")
    with pytest.raises(dataclasses.FrozenInstanceError):
        target.name = "other"  # type: ignore[misc]
    assert hash(target) == hash(targets.load("rpi4"))
    assert target == targets.load("rpi4")


def test_the_layout_of_a_quantised_precision_is_looked_up_by_name() -> None:
    precision = targets.load("rpi4").precision
    assert precision.quantisation("int4") == targets.Quantisation("int4", 32, 4)
    assert precision.quantisation("int8") == targets.Quantisation("int8", 64, 4)
    assert precision.quantisation("fp32") is None
    assert precision.quantisation("int2") is None


def test_budgets_are_read_as_bytes_and_tokens(write: Write) -> None:
    budget = {"storage": "96 MiB", "memory": "1 GiB", "context": 1024}
    target = targets.load(write(lambda document: document | {"budget": budget}))
    assert target.budget == targets.Budget(storage=96 * 2**20, memory=2**30, context=1024)


def test_every_budget_may_be_absent(write: Write) -> None:
    target = targets.load(write(lambda document: document | {"budget": {"storage": "1 KiB"}}))
    assert target.budget == targets.Budget(storage=1024, memory=None, context=None)
    assert targets.load("host").budget is None


@pytest.mark.parametrize(("asked", "meant"), [("rpi-4", "rpi4"), ("WearOS", "wearos"), ("androd", "android")])
def test_an_unknown_name_is_quoted_with_the_closest_known(asked: str, meant: str) -> None:
    with pytest.raises(targets.UnknownTargetError) as caught:
        targets.load(asked)
    assert caught.value.value == asked
    assert caught.value.known == targets.names()
    assert repr(asked) in str(caught.value)
    assert f"did you mean {meant!r}?" in str(caught.value)


def test_an_unknown_name_far_from_all_is_answered_with_the_list() -> None:
    with pytest.raises(targets.UnknownTargetError, match="no target is called 'toaster'") as caught:
        targets.load("toaster")
    assert "did you mean" not in str(caught.value)
    assert ", ".join(targets.names()) in str(caught.value)


def test_a_missing_file_is_no_unknown_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    with pytest.raises(targets.UnknownTargetError, match="no profile file at") as caught:
        targets.load(str(path))
    assert str(path) in str(caught.value)


def test_a_folder_is_no_profile(tmp_path: Path) -> None:
    with pytest.raises(targets.UnknownTargetError, match="no profile file at"):
        targets.load(tmp_path)


@pytest.mark.parametrize("content", [b"name = ", b"name = 1\nname = 2\n", b'name = "\xff"\n'])
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(content)
    with pytest.raises(targets.BadProfileError, match="is no TOML") as caught:
        targets.load(path)
    assert caught.value.file == str(path)
    assert str(path) in str(caught.value)
