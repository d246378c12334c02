"""All policies on several jobs at once: one to four equal ones, and the mixed five of TENSILE's Table IV.

    python -m indb_tensile.bench.multi [--models resnet50 …] [--jobs 1 2 3 4] [--policies tensile+ …] [--links 25]
        [--budgets 12] [--refine 4] [--compute turns] [--processes 1] [--json]

The jobs share the reference machine's two lanes, and take turns on its arithmetic operator by operator. The peak is
that of all jobs together, the overhead the mean of the jobs' overheads, each against the same jobs side by side
without planning; `eor_worst` is the one who pays most. Rows, tables, verdict and exit code are those of
`bench policies`.
"""

import argparse
import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from indb_tensile.bench import rows as shared
from indb_tensile.bench.batch import PAPERS_FIVE
from indb_tensile.bench.machines import REFERENCE
from indb_tensile.bench.networks import find, graph_of
from indb_tensile.bench.policies import add_sweep_options, finish
from indb_tensile.bench.rows import Row
from indb_tensile.errors import RequestError
from indb_tensile.scheduler.simulate import Compute

CASE = ("model", "jobs", "link_gb_s")
MIXED = "mixed"  # one job of each of the papers' five
JOBS = (1, 2, 3, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One set of jobs to compare policies on, by the names of their networks."""

    name: str
    models: tuple[str, ...]
    link_gb_s: float
    compute: Compute
    policies: tuple[str, ...]
    budgets: int
    refine: int


def main(arguments: Sequence[str] | None = None) -> None:
    """Print rows or tables, and the verdict."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_sweep_options(parser)
    parser.add_argument("--jobs", nargs="+", type=int, default=list(JOBS), help="how many equal jobs")
    kinds = [kind.value for kind in Compute]
    parser.add_argument("--compute", choices=kinds, default=Compute.TURNS.value, help="how jobs share the arithmetic")
    given = parser.parse_args(arguments)
    finish(given, CASE, lambda: _measure(_cases(given), given.processes))


def _measure(asked: Sequence[Asked], processes: int) -> Iterator[Row]:
    if processes == 1:
        for one in asked:
            yield from _sweep(one)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for found in pool.imap(_rows, asked):
            yield from found


def _rows(asked: Asked) -> list[Row]:
    return list(_sweep(asked))


def _sweep(asked: Asked) -> Iterator[Row]:
    graphs = [graph_of(model) for model in asked.models]
    operators = sum(len(graph.operators) for graph in graphs)
    labels = {"model": asked.name, "jobs": len(graphs), "operators": operators, "compute": asked.compute.value}
    case = shared.make_case(graphs, REFERENCE, asked.link_gb_s, labels=labels, compute=asked.compute)
    yield from shared.sweep(case, asked.policies, budgets=asked.budgets, refine=asked.refine)


def _cases(given: argparse.Namespace) -> list[Asked]:
    for name in given.models:
        if name != MIXED:
            find(name)
    if min(given.jobs) < 1:
        raise RequestError(f"{min(given.jobs)} jobs cannot be planned", hint="Give at least 1.")
    equal = [
        (model, (model,) * jobs) for model in given.models or PAPERS_FIVE if model != MIXED for jobs in given.jobs
    ]
    mixed = [(MIXED, PAPERS_FIVE)] if not given.models or MIXED in given.models else []
    return [
        Asked(
            name=name,
            models=models,
            link_gb_s=link,
            compute=Compute(given.compute),
            policies=shared.known_policies(given.policies),
            budgets=given.budgets,
            refine=given.refine,
        )
        for name, models in (*equal, *mixed)
        for link in given.links or (25.0,)
    ]


if __name__ == "__main__":
    main()
