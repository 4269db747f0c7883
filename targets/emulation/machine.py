"""Kinds of guest: what system, which emulator, whose wheels."""

from __future__ import annotations

__all__ = ["ARM64", "ARMV7", "PYTHON", "Machine"]

from dataclasses import dataclass

PYTHON = "3.11"
"""The guest's Python, which is that of its Debian release."""

_SYSTEM = (
    "libbz2-1.0",
    "libc6",
    "libexpat1",
    "libffi8",
    "libgcc-s1",
    "liblzma5",
    "libpython3.11-minimal",
    "libpython3.11-stdlib",
    "libssl3",
    "libstdc++6",
    "libuuid1",
    "python3.11-minimal",
    "zlib1g",
)
"""What Python and ONNX Runtime link to."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A kind of guest.

    Attributes:
        name: As results call it.
        architecture: As the package archive calls it.
        emulator: The program that runs it.
        system: Packages that its system is unpacked from.
        plainest: A core that every such system runs on.
        platforms: Tags of the wheels that it takes, the most demanding first.
        libraries: Folders of shared libraries, from the system's root, that its linker does not search.
    """

    name: str
    architecture: str
    emulator: str
    system: tuple[str, ...]
    plainest: str
    platforms: tuple[str, ...]
    libraries: tuple[str, ...] = ()


ARM64 = Machine(
    name="arm64",
    architecture="arm64",
    emulator="qemu-aarch64",
    system=_SYSTEM,
    plainest="cortex-a53",
    platforms=(
        "manylinux_2_28_aarch64",
        "manylinux_2_27_aarch64",
        "manylinux2014_aarch64",
        "manylinux_2_17_aarch64",
    ),
)
"""64-bit Arm, with the wheels that a Raspberry Pi installs."""

ARMV7 = Machine(
    name="armv7",
    architecture="armhf",
    emulator="qemu-arm",
    # NumPy is the archive's: there is no wheel of it.
    system=(*_SYSTEM, "libblas3", "libgfortran5", "liblapack3", "python3-numpy"),
    plainest="cortex-a7",
    platforms=("manylinux_2_35_armv7l", "manylinux_2_31_armv7l"),
    # A package's installation would link these into a folder that is searched.
    libraries=("usr/lib/arm-linux-gnueabihf/blas", "usr/lib/arm-linux-gnueabihf/lapack"),
)
"""32-bit Arm with NEON, as on older watches."""
