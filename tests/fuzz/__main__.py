"""`make fuzz SECONDS=600 SEED=7`: every target in turn, for a share of the time each; ONLY names some of them."""

import argparse
import sys
from random import SystemRandom

from fuzz.search import Found, search
from fuzz.targets import TARGETS


def main() -> int:
    asked = argparse.ArgumentParser(prog="fuzz")
    asked.add_argument("--seconds", type=float, default=60.0)
    asked.add_argument("--seed", type=int, default=None)
    asked.add_argument("--only", nargs="*", default=[])
    given = asked.parse_args()
    seed = SystemRandom().randrange(10**9) if given.seed is None else given.seed
    chosen = [target for target in TARGETS if not given.only or target.name in given.only]
    print(f"seed {seed}", flush=True)
    found = 0
    for target in chosen:
        try:
            tally = search(target, seed, given.seconds / len(chosen))
            print(f"{target.name:14} {tally.cases:9,} cases, {tally.taken:9,} taken", flush=True)
        except Found as failure:
            found += 1
            print(f"{target.name:14} FOUND {failure}", flush=True)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
