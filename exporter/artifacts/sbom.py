"""The bill of materials of a bundle, in CycloneDX."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from exporter.errors import MissingPackageError

__all__ = ["SBOM", "bill_of_materials"]

SBOM: Final = "sbom.cdx.json"
_NAMESPACE: Final = uuid.UUID("6b0d7f0e-5a1c-5c57-9a3e-2f1d3c4b5a69")
_NO_TIME: Final = datetime(1980, 1, 1, tzinfo=UTC)
"""Instead of the present, which would make every build another."""


def bill_of_materials(
    description: Mapping[str, Any], sums: Mapping[str, str], required: Mapping[str, str]
) -> str:
    """A CycloneDX 1.6 document, the same for the same bundle.

    Args:
        description: the bundle's ``bundle.json``.
        sums: SHA-256 of its files.
        required: versions of the packages that it needs on the device; a version may be a bound.

    Raises:
        MissingPackageError: cyclonedx-python-lib is not installed.
    """
    try:
        from cyclonedx.model import HashAlgorithm, HashType, Property  # noqa: PLC0415 - an extra
        from cyclonedx.model.bom import Bom  # noqa: PLC0415
        from cyclonedx.model.component import Component, ComponentType  # noqa: PLC0415
        from cyclonedx.output.json import JsonV1Dot6  # noqa: PLC0415
    except ImportError as error:
        message = (
            "the bill of materials needs cyclonedx-python-lib. Install the extra: "
            "pip install 'needle-ladder-export[artifacts]'."
        )
        raise MissingPackageError(message) from error

    def digest(value: str) -> HashType:
        return HashType(alg=HashAlgorithm.SHA_256, content=value)

    name, source = description["name"], description["source"]
    identity = uuid.uuid5(_NAMESPACE, f"{name} {' '.join(f'{n}={s}' for n, s in sorted(sums.items()))}")
    whole = Component(
        name=name,
        type=ComponentType.MACHINE_LEARNING_MODEL,
        version=source["slice_sha256"][:12],
        bom_ref=name,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=source["slice_sha256"])],
        properties=[
            Property(name="ladder:checkpoint", value=source["name"]),
            Property(name="ladder:depth", value=str(description["slice"]["depth"])),
            Property(name="ladder:precision", value=description["precision"]["scheme"]["name"]),
            Property(name="ladder:target", value=description["target"]["name"]),
        ],
    )
    own = [
        Component(name=file, type=ComponentType.FILE, bom_ref=file, hashes=[digest(found)])
        for file, found in sorted(sums.items())
    ]
    needed = [
        Component(name=package, version=version, type=ComponentType.LIBRARY, bom_ref=f"needs:{package}")
        for package, version in sorted(required.items())
    ]
    bom = Bom(components=[*own, *needed], serial_number=identity)
    bom.metadata.component = whole
    bom.metadata.timestamp = _NO_TIME
    bom.register_dependency(whole, [*own, *needed])
    return str(JsonV1Dot6(bom).output_as_string(indent=1)) + "\n"
