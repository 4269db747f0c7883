"""The Android library: a bundle among its assets, for an app to depend on."""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path
from typing import Final

from exporter.artifacts.packed import Item, write_zip
from exporter.bundle import files_of

__all__ = ["MINIMUM_SDK", "namespace", "write_aar"]

MINIMUM_SDK: Final = 24
"""The oldest Android that ONNX Runtime's own library supports."""

_MAPPED: Final = (".bin", ".onnx")
_MANIFEST = """\
<?xml version="1.0" encoding="utf-8"?>
<manifest xmlns:android="http://schemas.android.com/apk/res/android" package="{package}">
    <uses-sdk android:minSdkVersion="{sdk}" />
</manifest>
"""


def namespace(name: str) -> str:
    """A Java package name for the library, no two alike for bundles of different names."""
    words = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    return f"ladder.bundle.{words if words[:1].isalpha() else f'b{words}'}"


def write_aar(folder: Path, name: str, path: Path) -> None:
    """Write an ``.aar`` that holds a bundle as ``assets/<name>``.

    Graphs and weights are stored uncompressed, since weights do not compress, and start on a page of
    16 KiB. An app keeps that by listing their suffixes as ``noCompress``; its own build packs them anew.

    Args:
        folder: the bundle.
        name: of the folder among the assets.
        path: the file to write.
    """
    manifest = _MANIFEST.format(package=namespace(name), sdk=MINIMUM_SDK)
    items = [
        Item("AndroidManifest.xml", manifest.encode()),
        Item("classes.jar", _empty_jar()),
        Item("R.txt", b""),
        *(
            Item(f"assets/{name}/{inner}", folder / inner, stored=inner.endswith(_MAPPED))
            for inner in files_of(folder)
        ),
    ]
    write_zip(path, items)


def _empty_jar() -> bytes:
    """A jar without classes, which the format asks for."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as jar:
        jar.writestr(
            zipfile.ZipInfo("META-INF/MANIFEST.MF", (1980, 1, 1, 0, 0, 0)), "Manifest-Version: 1.0\r\n\r\n"
        )
    return buffer.getvalue()
