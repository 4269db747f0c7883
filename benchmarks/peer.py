"""One measurement of the Rust port in a process of its own: ``python benchmarks/peer.py FILE.cact DEPTH``.

Its API only generates, so a prefill is a generation of one token, and a decoded token is what each further
one adds.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time

os.environ["RAYON_NUM_THREADS"] = "1"

import needle_rs

PROMPT, DECODE = 256, 64


def main(path: str, depth: int) -> None:
    """Print tokens per second of prefill and decode, and the peak of resident memory in bytes."""
    engine = needle_rs.V3Engine.load_with_depth(path, depth)
    query, tools = "turn on the kitchen light ", "[]"
    repeats = 1
    while (
        engine.generate(query * repeats, tools, max_new_tokens=1)["positions"] < PROMPT and repeats < PROMPT
    ):
        repeats += max(1, repeats // 4)
    start = time.perf_counter()
    positions = engine.generate(query * repeats, tools, max_new_tokens=1)["positions"]
    first = time.perf_counter() - start
    start = time.perf_counter()
    generated = len(engine.generate(query * repeats, tools, max_new_tokens=1 + DECODE)["token_ids"])
    both = time.perf_counter() - start
    figures = {
        "prompt": positions,
        "decoded": generated - 1,
        "prefill_rate": positions / first,
        "decode_rate": (generated - 1) / (both - first) if generated > 1 else None,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
