#!/bin/sh
# Answers a query with the bundle beside this script:
#     ./run "turn off the light in the kitchen" --tools tools.json
# The first run makes a virtual environment here; where there are wheels, without a network.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
if [ ! -f "$here/.venv/complete" ]; then
    "${PYTHON:-python3}" -m venv --clear "$here/.venv" || {
        echo "error: no virtual environment can be made. Run: sudo apt install python3-venv" >&2
        exit 6
    }
    if [ -d "$here/wheels" ]; then
        "$here/.venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
            --no-index --find-links "$here/wheels" -r "$here/requirements.txt" >&2
    else
        "$here/.venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
            -r "$here/requirements.txt" >&2
    fi
    : > "$here/.venv/complete"
fi
# Bytes compiled elsewhere than in the bundle leave its folder as its sums describe it.
PYTHONPATH="$here/bundle" PYTHONPYCACHEPREFIX="$here/.venv/compiled" \
    exec "$here/.venv/bin/python" -m runtime_py "$here/bundle" "$@"
