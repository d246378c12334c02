"""Compares ways to share one device between jobs: turns, first fit, admission at any price, and foretold completion.

    tensile bench share [--dsn "host=… user=postgres"] [--mix NAME …] [--methods NAME …] [--threads 1 …] [--rounds 3]
        [--device emulated] [--length 1.0] [--jobs] [--json]

Real trainings are enqueued from SQL, and a real controller runs them. `turns` runs one job at a time, with all of
the memory. `first_fit` runs unplanned jobs side by side, as many as fit, which is what a careful user does.
`any_price` plans the jobs and lets one in as soon as any plan fits. `completion` lets jobs in where the foretold
completion of all gets better; it runs where the controller has the setting `sharing`.

Each mix (bench/harness/share/share_mixes.py) first runs cold: every distinct training once, in a database that knows
none of their latencies. The cold run has a row of its own, and its peaks decide the mix's memory. Then rounds follow,
in which every distinct training runs alone and every method runs the mix. A row has the medians of a method's rounds
and its largest peak (bench/harness/share/share_measures.py defines the measures). After all mixes comes a table of
the bars that sharing has to meet (bench/harness/share/share_bars.py). With `--jobs` there is also a row for each job,
which shows where the foretold and the measured throughput part (bench/harness/share/share_jobs.py).

Every number of threads of `--threads` has rows of its own: each job has that many threads in every method. The exit
code is 1 if a job does not succeed, if jobs used more than their memory at any moment of any run, or if the
parameters of any job differ by a bit from those of the same training alone.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields

from rich.console import Console

from indb_tensile import config
from indb_tensile.bench.harness.processes.argument_types import whole
from indb_tensile.bench.harness.processes.process_exit import run
from indb_tensile.bench.harness.results.result_tables import print_table
from indb_tensile.bench.harness.results.rows import Row, stamped
from indb_tensile.bench.harness.share.share_bars import ShareBar, judged_method
from indb_tensile.bench.harness.share.share_methods import METHODS, ShareMethod, available
from indb_tensile.bench.harness.share.share_mixes import MIXES, Mix, find_mix
from indb_tensile.bench.harness.share.share_runs import MixOutcome, run_mix
from indb_tensile.bench.harness.share.share_site import share_site
from indb_tensile.config import MIB
from indb_tensile.errors import RequestError, TensileError

_START_S = 8.0  # time to start the controllers of a mix, measured on two idle cores
KNOWN = frozenset(field.name for field in fields(config.Settings))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the rows of all mixes, then the bars. Exits with code 1 after a fault."""
    options = _parser().parse_args(arguments)
    if not 0 < options.length <= 100:
        raise RequestError(f"--length is {options.length:g}", hint="Give a number above 0, up to 100.")
    methods = available(KNOWN, options.methods)
    mixes = [find_mix(name).lengthened(options.length) for name in options.mix or [mix.name for mix in MIXES]]
    _tell(estimate(mixes, methods, options.rounds, len(options.threads)))
    outcomes: list[MixOutcome] = []
    faults: list[str] = []
    with share_site(options.dsn, options.device, options.limit, options.directory) as site:
        for threads in options.threads:
            for mix in mixes:
                try:
                    outcome = run_mix(site, mix, methods, threads=threads, rounds=options.rounds, known=KNOWN)
                except TensileError as error:  # the other mixes are measured all the same
                    faults.append(f"{mix.name}: {error.message}\n{error.detail}".rstrip())
                    continue
                outcomes.append(outcome)
                faults.extend(outcome.faults)
                _print_rows(outcome, as_json=options.json)
                if options.jobs:
                    _print_jobs(outcome, as_json=options.json)
    if not options.json:
        print_bars([bar for outcome in outcomes for bar in outcome.bars()], [method.name for method in methods])
    for fault in faults:
        _tell(fault)
    if faults:
        sys.exit(1)


def estimate(mixes: Sequence[Mix], methods: Sequence[ShareMethod], rounds: int, tables: int) -> str:
    """Return a sentence on how long the benchmark will take on two idle cores."""
    seconds = tables * sum(_mix_s(mix, len(methods), rounds) for mix in mixes)
    minutes = max(1, round(seconds / 60))
    parts = (
        f"mixes: {len(mixes)}",
        f"methods: {len(methods)}",
        f"rounds: {rounds}",
        f"minutes on two idle cores: about {minutes}",
    )
    return ", ".join(parts)


def _mix_s(mix: Mix, methods: int, rounds: int) -> float:
    """Return the seconds of a mix: every method is counted as long as turns."""
    alone_s = mix.about_s * len(mix.trainings) / len(mix.jobs)
    unlimited_s = 0.0 if mix.unlimited is None else mix.about_s * mix.unlimited / len(mix.jobs)
    return alone_s + _START_S + rounds * (methods * mix.about_s + alone_s + unlimited_s)


def print_bars(bars: Sequence[ShareBar], methods: Sequence[str]) -> None:
    """Print the bars as a table."""
    judged = judged_method(methods)
    if not bars:
        print("no bar can be computed from these methods")
        return
    lines = [
        {
            "mix": bar.mix,
            "threads": str(bar.threads),
            f"{judged}: what is compared": bar.text,
            "figure": f"{bar.figure:.3f}",
            "asked": bar.asked,
            "result": {True: "met", False: "NOT MET", None: "-"}[bar.met],
        }
        for bar in bars
    ]
    print_table(Console(width=200, highlight=False), f"bars of {judged}", lines)


def _print_rows(outcome: MixOutcome, *, as_json: bool) -> None:
    if not as_json:
        print(f"{outcome.mix.name}: {outcome.mix.text}; {outcome.budget_bytes / MIB:,.0f} MB", flush=True)
    for row in outcome.rows():
        print(stamped(row) if as_json else _line(row), flush=True)


def _print_jobs(outcome: MixOutcome, *, as_json: bool) -> None:
    if as_json:
        for row in outcome.jobs:
            print(stamped(row), flush=True)
        return
    lines = [{name: _cell(value) for name, value in row.items()} for row in outcome.jobs]
    print_table(Console(width=200, highlight=False), f"jobs of {outcome.mix.name}", lines)


def _cell(value: object) -> str:
    return "-" if value is None else str(value)


def _line(row: Row) -> str:
    return (
        f"  {row['method']:<11} {row['threads']} threads  makespan {row['makespan_s']:7.2f} s  "
        f"ANTT {_shown(row['antt'])}  STP {_shown(row['stp_measured'])} (foretold {_shown(row['stp_foretold'])})  "
        f"worst {_shown(row['worst_slowdown'])}  first step {row['first_step_s']:6.2f} s  "
        f"peak {row['peak_bytes'] / MIB:,.1f} MB"
    )


def _shown(value: float | None) -> str:
    return f"{'-' if value is None else format(value, '.3f'):>6}"


def _tell(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dsn", default="", help="a superuser's connection to any database of the server")
    parser.add_argument("--mix", nargs="+", default=[], metavar="NAME", help=", ".join(mix.name for mix in MIXES))
    parser.add_argument(
        "--methods", nargs="+", default=[], metavar="NAME", help=", ".join(method.name for method in METHODS)
    )
    parser.add_argument("--threads", nargs="+", type=whole(), default=[1], help="threads of each job, one table each")
    parser.add_argument("--rounds", type=whole(), default=3)
    parser.add_argument("--device", choices=("emulated", "cpu"), default="emulated")
    parser.add_argument("--length", type=float, default=1.0, help="factor on all epochs")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds in which a run has to end")
    parser.add_argument("--directory", default=None, help="a directory on the disk to swap to")
    parser.add_argument("--jobs", action="store_true", help="print a row for each job of each run, too")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    return parser


if __name__ == "__main__":
    run(main)
