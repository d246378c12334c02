"""Compares all policies at batches of 4 to 64: the memory saved and its cost, as activations outgrow parameters.

    python -m indb_tensile.bench batch [--models resnet50 …] [--batches 4 8 16 32 64] [--policies tensile+ …]
        [--links 25] [--budgets 12] [--refine 4] [--beside FILE …] [--processes 1] [--json]

The benchmark plans the papers' five networks on the reference machine (TENSILE section V-G and Figure 7). Rows,
tables, verdict and exit code are those of `bench policies`.
"""

import argparse
from collections.abc import Sequence

from indb_tensile.bench.commands.policies import (
    PolicySweep,
    add_beside,
    add_sweep_options,
    finish,
    measure,
    sweep_case,
    sweep_of,
)
from indb_tensile.bench.harness.networks.known_networks import find
from indb_tensile.bench.harness.processes.process_exit import run
from indb_tensile.errors import RequestError
from indb_tensile.scheduler.timing.machines import REFERENCE

PAPERS_FIVE = ("vgg16", "inception_v3", "inception_v4", "resnet50", "densenet121")
BATCHES = (4, 8, 16, 32, 64)
CASE = ("model", "batch", "link_gb_s")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print rows or tables, and the verdict."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_sweep_options(parser)
    add_beside(parser)
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES), metavar="ROWS")
    options = parser.parse_args(arguments)
    finish(options, CASE, lambda: measure(_cases(options), sweep_case, options.processes))


def _cases(options: argparse.Namespace) -> list[PolicySweep]:
    for name in options.models:
        find(name)
    if min(options.batches) < 1:
        raise RequestError(f"there is no batch of {min(options.batches)}", hint="Give at least 1 row.")
    return [
        sweep_of(options, model, REFERENCE.name, link, batch=batch)
        for model in options.models or PAPERS_FIVE
        for batch in options.batches
        for link in options.links or (25.0,)
    ]


if __name__ == "__main__":
    run(main)
