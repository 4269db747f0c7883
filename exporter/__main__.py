"""``python -m exporter``."""

from __future__ import annotations

from exporter.cli import main

if __name__ == "__main__":
    main(prog_name="python -m exporter")
