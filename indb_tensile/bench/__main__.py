"""Runs a benchmark by name: `python -m indb_tensile.bench step`. `tensile bench step` executes this module.

The import of the benchmark, which takes seconds with torch, is part of the run, so that a signal during the import
ends the process in the same way as later (bench/harness/processes/process_exit.py).
"""

import sys
from importlib import import_module

from indb_tensile.bench.harness.processes.process_exit import run

_MODULES = {"ranks": "rank_comparison"}  # of benchmarks whose name another module of the package has


def _run_named_benchmark() -> None:
    _, noun, *arguments = sys.argv
    sys.argv = [f"tensile bench {noun}", *arguments]  # the program's name in --help
    import_module(f"indb_tensile.bench.commands.{_MODULES.get(noun, noun)}").main()


if __name__ == "__main__":
    run(_run_named_benchmark)
