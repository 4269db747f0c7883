"""Packages of a Debian archive without installing any: a private apt that shares nothing but keys.

The archive's address is the machine's own, or that of the environment variable ``EMULATION_ARCHIVE``.
"""

from __future__ import annotations

__all__ = ["ADDRESS", "Archive"]

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from targets.emulation.errors import ArchiveError, DownloadError, MissingToolError
from targets.emulation.files import call, sha256

ADDRESS = "EMULATION_ARCHIVE"
"""Environment variable with the address of a Debian archive, for machines whose own is none."""

_EMULATOR_SUITE, _GUEST_SUITE = "trixie", "bookworm"
_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_AGAIN = "check the network and run it again, which goes on from here"


@dataclass(frozen=True, slots=True)
class Archive:
    """A private apt.

    Attributes:
        folder: Where it keeps its lists and its own configuration.
        packages: Where fetched packages go.
    """

    folder: Path
    packages: Path

    def fetch(self, native: tuple[str, ...], foreign: tuple[str, ...], architecture: str) -> list[Path]:
        """Fetch packages, or find them fetched.

        Args:
            native: Packages for this machine, from the emulator's release.
            foreign: Packages for the guest, from the guest's release.
            architecture: The guest's.

        Returns:
            Their files, verified, in no order.

        Raises:
            MissingToolError: There is no apt.
            ArchiveError: There is no archive to ask, or it lacks a release or a package.
            DownloadError: A file did not arrive whole.
        """
        for tool in ("apt-get", "dpkg", "dpkg-deb"):
            if shutil.which(tool) is None:
                raise MissingToolError(
                    "look for apt", f"there is no {tool!r}", "run this on Debian or a system made from it"
                )
        host = call("ask for the architecture", ["dpkg", "--print-architecture"]).strip()
        options = self._configure(host, architecture)
        names = [f"{name}:{host}/{_EMULATOR_SUITE}" for name in native]
        names += [f"{name}:{architecture}/{_GUEST_SUITE}" for name in foreign]
        step = f"read the lists of the archive ({_EMULATOR_SUITE} {host}, {_GUEST_SUITE} {architecture})"
        apt = ["apt-get", *options]
        # Without Error-Mode a list that could not be had is only a warning.
        call(step, [*apt, "-o", "APT::Update::Error-Mode=any", "update"], error=ArchiveError, remedy=_AGAIN)
        step = f"look packages up for {architecture}"
        listed = call(step, [*apt, "download", "--print-uris", *names], error=ArchiveError, remedy=_AGAIN)
        return self._download(apt, names, _sums(listed))

    def _download(self, apt: list[str], names: list[str], sums: dict[str, str]) -> list[Path]:
        """Download what is missing, with apt's own resuming, and let in only what is whole."""
        step = "download packages"
        partial = self.packages / ".partial"
        partial.mkdir(parents=True, exist_ok=True)
        wanted = {name for name in sums if not (self.packages / name).exists()}
        if wanted:
            chosen = [n for n in names if any(file.startswith(f"{n.partition(':')[0]}_") for file in wanted)]
            try:
                call(step, [*apt, "download", *chosen], folder=partial, error=DownloadError, remedy=_AGAIN)
            finally:
                # What arrived before a failure is kept.
                for name in wanted:
                    if (partial / name).exists() and sha256(partial / name) == sums[name]:
                        (partial / name).replace(self.packages / name)
        for name in sums:
            if not (self.packages / name).exists():
                (partial / name).unlink(missing_ok=True)
                raise DownloadError(step, f"{name} differs from the archive's list", _AGAIN)
        shutil.rmtree(partial)
        return [self.packages / name for name in sums]

    def _configure(self, host: str, architecture: str) -> list[str]:
        """Write the private configuration; what to tell apt."""
        root = self.folder
        for folder in ("lists/partial", "cache/archives/partial", "state"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        (root / "status").touch()
        address, keys = _address()
        signed = f" signed-by={keys}" if keys else ""
        (root / "sources.list").write_text(
            f"deb [arch={host}{signed}] {address} {_EMULATOR_SUITE} main\n"
            f"deb [arch={architecture}{signed}] {address} {_GUEST_SUITE} main\n",
            encoding="utf-8",
        )
        settings = {
            "Dir::State": root / "state",
            "Dir::State::Lists": root / "lists",
            "Dir::State::status": root / "status",
            "Dir::Cache": root / "cache",
            "Dir::Etc::SourceList": root / "sources.list",
            "Dir::Etc::SourceParts": "/dev/null",
            "Dir::Etc::Preferences": "/dev/null",
            "Dir::Etc::PreferencesParts": "/dev/null",
            "Acquire::Languages": "none",
            "APT::Architecture": host,
            "APT::Architectures::": host,
            # The folder is the caller's, where apt's own user may not look.
            "APT::Sandbox::User": "",
        }
        options = [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]
        return [*options, "-o", f"APT::Architectures::={architecture}"]


def _sums(listed: str) -> dict[str, str]:
    """SHA-256 by file name, as ``apt-get download --print-uris`` lists them."""
    lines = re.findall(r"^'\S+' (\S+) \d+ SHA256:([0-9a-f]{64})$", listed, re.MULTILINE)
    return dict(lines)


def _address() -> tuple[str, str | None]:
    """Address of the archive, and the file of the keys that sign it, None for those that apt trusts.

    Raises:
        ArchiveError: This machine's sources name no Debian archive.
    """
    step = "find the archive"
    if given := os.environ.get(ADDRESS):
        return given, str(_KEYS) if _KEYS.exists() else None
    form = "$(REPO_URI)|$(ORIGIN)|$(LABEL)|$(COMPONENT)|$(SOURCESENTRY)"
    targets = call(step, ["apt-get", "indextargets", "--format", form], error=ArchiveError).splitlines()
    for line in targets:
        address, origin, label, component, entry = line.split("|")
        # A machine that never updated its lists knows no origin yet.
        debian = (origin, label) == ("Debian", "Debian") or (
            origin.startswith("$(") and address.rstrip("/").endswith("/debian")
        )
        if debian and component == "main":
            return address, _keys(entry)
    raise ArchiveError(
        step,
        "this machine's sources name no Debian archive",
        f"set {ADDRESS} to the address of one",
    )


def _keys(entry: str) -> str | None:
    """The file of keys that a source names: ``FILE:NUMBER``, a line or a paragraph."""
    name, _, number = entry.rpartition(":")
    try:
        text = Path(name).read_text(encoding="utf-8")
    except OSError:
        return None
    if name.endswith(".sources"):
        parts = [part for part in re.split(r"\n\s*\n", text) if "URIs:" in part]
        found = re.search(r"^Signed-By:\s*(/\S+)", "\n".join(parts[int(number) - 1 :][:1]), re.MULTILINE)
    else:
        found = re.search(r"signed-by=([^\s\]]+)", "\n".join(text.splitlines()[int(number) - 1 :][:1]))
    return found[1] if found else None
