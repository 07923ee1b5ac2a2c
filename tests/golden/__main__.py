"""`python -m tests.golden [--record] [NAME…]`: see `tests/golden/__init__.py`."""

from __future__ import annotations

import argparse
import sys
import time

from tests.golden.compare import differences
from tests.golden.record import load, path_of, record, save
from tests.golden.renames import ACCEPTED, RENAMES
from tests.golden.setups import SETUPS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden")
    parser.add_argument("--record", action="store_true", help="write the records instead of comparing with them")
    parser.add_argument("--most", type=int, default=40, help="the most differences of a set-up to print")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SETUPS)}; all by default")
    options = parser.parse_args()
    if unknown := {*options.names} - {*SETUPS}:
        parser.error(f"there is no set-up {', '.join(sorted(unknown))}; there are {', '.join(SETUPS)}")
    has_failed = False
    for name in options.names or SETUPS:
        began = time.monotonic()
        now = record(name)
        if options.record:
            save(name, now)
            found, what = [], f"recorded, {path_of(name).stat().st_size} bytes"
        else:
            found = differences(load(name), now, RENAMES, [each for each in ACCEPTED if each.setup == name])
            what = f"{len(found)} differences" if found else "as recorded"
        print(f"{name}: {what} ({time.monotonic() - began:.1f} s)", flush=True)
        for each in found[: options.most]:
            print(f"  {each}")
        if len(found) > options.most:
            print(f"  and {len(found) - options.most} more")
        has_failed |= bool(found)
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
