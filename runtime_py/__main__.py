"""``python -m runtime_py``."""

from __future__ import annotations

import sys

from runtime_py.cli import main

if __name__ == "__main__":
    sys.exit(main())
