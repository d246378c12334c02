"""All policies at batches of 4 to 64: what is saved, and at what cost, as activations outgrow parameters.

    python -m indb_tensile.bench.batch [--models resnet50 …] [--batches 4 8 16 32 64] [--policies tensile+ …]
        [--links 25] [--budgets 12] [--refine 4] [--beside FILE …] [--processes 1] [--json]

The papers' five networks on the reference machine (TENSILE section V-G and Figure 7). Rows, tables, verdict and exit
code are those of `bench policies`.
"""

import argparse
from collections.abc import Sequence

from indb_tensile.bench.ending import run
from indb_tensile.bench.networks import find
from indb_tensile.bench.policies import Asked, add_beside, add_sweep_options, asked_of, finish, measure, swept
from indb_tensile.errors import RequestError
from indb_tensile.scheduler.machines import REFERENCE

PAPERS_FIVE = ("vgg16", "inception_v3", "inception_v4", "resnet50", "densenet121")
BATCHES = (4, 8, 16, 32, 64)
CASE = ("model", "batch", "link_gb_s")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print rows or tables, and the verdict."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_sweep_options(parser)
    add_beside(parser)
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES), metavar="ROWS")
    given = parser.parse_args(arguments)
    finish(given, CASE, lambda: measure(_cases(given), swept, given.processes))


def _cases(given: argparse.Namespace) -> list[Asked]:
    for name in given.models:
        find(name)
    if min(given.batches) < 1:
        raise RequestError(f"there is no batch of {min(given.batches)}", hint="Give at least 1 row.")
    return [
        asked_of(given, model, REFERENCE.name, link, batch=batch)
        for model in given.models or PAPERS_FIVE
        for batch in given.batches
        for link in given.links or (25.0,)
    ]


if __name__ == "__main__":
    run(main)
