"""`python -m bench [SECTION …] [--records N] [--quick]`: the measurements of docs/benchmarks.md, printed as ratios.

Each figure comes from a separate process, one after the other, on a real broker and catalog in a temporary folder.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time

from bench import (
    backlog,
    continuous,
    formats,
    on_data,
    planning,
    quality,
    refill,
    scale,
    steady,
    target,
    trigger,
    upkeep,
    versions,
    viewers,
    week,
)
from bench.lab import Lab, say

SECTIONS = {
    "a": backlog.measure,
    "b": target.measure,
    "c": trigger.measure,
    "d": planning.measure,
    "e": upkeep.measure,
    "f": formats.measure,
    "g": quality.measure,
    "h": refill.measure,
    "i": viewers.measure,
    "j": scale.measure,
    "k": continuous.measure,
    "l": on_data.measure,
    "m": week.measure,
    "n": steady.measure,
    "o": versions.measure,
}


def main() -> None:
    """Run the chosen sections in order."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="a|b|c|d|e|f|g|h|i|j|k|l|m|n|o", help="which to run (all)")
    parser.add_argument(
        "--records",
        type=int,
        help="records of sections a and g (5,000,000), f (1,000,000) and h (2,000,000), per batch of b (10,000); "
        "tables of d (100); the most of j (50,000,000); records per second of k (1,000) and n (100); tables of m (20); "
        "batches of o (40)",
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, under 3 minutes: a smoke test, not a result")
    parser.add_argument("--keep", action="store_true", help="keep the folder with data and logs")
    arguments = parser.parse_args()
    wanted = sorted(set(arguments.sections)) or list(SECTIONS)
    if unknown := [name for name in wanted if name not in SECTIONS]:
        parser.error(f"no section {', '.join(unknown)}: there are {', '.join(SECTIONS)}")
    # SIGTERM must also stop the broker and the stack.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began = time.monotonic()
    with Lab(keep=arguments.keep) as lab:
        for name in wanted:
            SECTIONS[name](lab, quick=arguments.quick, records=arguments.records)
    say(f"\ntotal: {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
