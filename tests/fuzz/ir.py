"""`python -m fuzz.ir --count 2000` (in `tests`): runs `dl-opt` on damaged IR. It must succeed or print an error."""

from __future__ import annotations

import argparse
import random
import sys
import time

from .texts import complaint, damage, texts


def main() -> int:
    """Prints each text for which `dl-opt` crashes. Returns 1 if there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--show", action="store_true", help="print the damaged texts too")
    options = parser.parse_args()
    whole = texts()
    started, slowest, found = time.monotonic(), (0.0, 0), 0
    for seed in range(options.first, options.first + options.count):
        level, text = whole[seed % len(whole)]
        text = damage(text, random.Random(seed))
        begun = time.process_time()
        problem = complaint(level, text)
        slowest = max(slowest, (time.process_time() - begun, seed))
        if problem is not None:
            found += 1
            print(f"--- seed {seed}, {level}: {problem[:600]}" + (f"\n{text}" if options.show else ""), flush=True)
    print(f"{found} problems in {options.count} texts, {time.monotonic() - started:.0f} s; slowest {slowest}")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
