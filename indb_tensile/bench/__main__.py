"""Runs a benchmark by its name: `python -m indb_tensile.bench step`, which is what `tensile bench step` becomes.

Even while it still imports, which with torch takes seconds, it ends as it would later (bench/ending.py).
"""

import sys
from importlib import import_module

from indb_tensile.bench.ending import run


def _named() -> None:
    _, noun, *arguments = sys.argv
    sys.argv = [f"tensile bench {noun}", *arguments]  # what its --help calls it
    import_module(f"indb_tensile.bench.{noun}").main()


if __name__ == "__main__":
    run(_named)
