"""Compares one training on several processes (ranks) with PyTorch's DistributedDataParallel, in the same turns.

    python -m indb_tensile.bench ranks [--models cnn … | bert [--batch 4] [--side 32]] [--parts 4]
        [--ranks 1 2] [--bits 4] [--share 0.7] [--rounds 5] [--iterations 3] [--seconds 0.5] [--json]

The networks are five small ones, or known ones (bench/harness/networks/known_networks.py). Every
contender trains the same network on the same batch, which is divided into `--parts` parts, with one thread a
rank and Gloo over loopback. A rank computes the parts that fall to it. The contenders of all numbers of ranks take
turns, each from the same initial state. All turns have as many iterations: `--iterations` at least, and those that
the fastest contender does in `--seconds`. A turn of a tenth of a second shows what one wait for a processor did.

- `DDP` is eager PyTorch with fused Adam. It adds up a rank's parts without an exchange (`no_sync`), and exchanges
  buckets of gradients during the backward pass of the last part. Gradients are views of the buckets.
- `exact` is our captured step with the sum in the order of the parts, and `fast` that with the library's all-reduce.
  Both exchange during the backward pass of the last part. With one rank there is one step, without an exchange.
- `DDP, ZeRO` is DDP with `torch.distributed.optim.ZeroRedundancyOptimizer`, and `exact, divided` ours with the
  optimizer's state divided among the ranks.
- The last rows are the same with `--share` of DDP's memory, in which DDP does not run.

Each row has:

- `samples_per_s`: rows of the batch by the time of the slowest rank, the median of the rounds. `ratio` is the median
  of the ratios of DDP's time to this one in the same round, so above 1 is faster than DDP.
- `sent_bytes` a step of the rank that sends the most, as the kernel counts TCP's data
  (bench/harness/comparisons/sent_bytes.py).
- `peak_bytes`: the most memory of a rank in a step; of DDP from the events of torch's allocator, with parameters,
  state and buckets and without the batch, of ours from the ledger, with the whole batch. `budget_bytes` is what the
  plan was made for. A budget below `floor_bytes`, under which no plan goes, is raised to it.
- `foretold_ms` is the simulator's forecast of all ranks together from the latencies of the turn before, exchanges
  among them, and `forecast_error` how far the measured time is from it, the median of the rounds.
- `first_foretold_ms` and `first_forecast_error` are the same for the first forecast, from what is known before the
  ranks exchange anything: operators that were measured without other ranks, and the measured speed of the network.
  Both are measured again before each turn, so that a machine that becomes slower counts for neither.
  `first_exchange_ms` is what all exchanges of an iteration were then foretold to take, without operators beside
  them, and `exchange_ms` what they took, a part of it beside the backward pass. `late_ms` is how long a rank waited
  in them for another one.
- `equal_ranks`: whether all ranks end with the same parameters and buffers, bit for bit. DDP's do not if the network
  has batch normalisation. `exact_bits`: whether these are the bits of one device with the same parts; only `exact`
  promises that.

After the timed rounds a team of `--bits` ranks runs one turn, each rank in another share of DDP's memory.

Ranks share the processors of one machine, so a second rank on two cores is at most twice as fast, and with other
work on the machine less. The exit code is 1 if `exact` misses the bits of one device, if ranks differ, or if a
measured peak of ours is above its plan's.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import ceil
from statistics import median
from typing import Any

from indb_tensile import config
from indb_tensile.bench.commands.forecast import SmallNetwork
from indb_tensile.bench.harness.comparisons.rank_contenders import (
    DDP,
    DDP_ZERO,
    PlannedMemory,
    RankMethod,
    RankTurn,
    SubjectSource,
)
from indb_tensile.bench.harness.comparisons.rank_team import RankTeam
from indb_tensile.bench.harness.execution.benchmark_processes import preload, preload_children, run_each_alone
from indb_tensile.bench.harness.execution.cases import BenchmarkCase, add_sizes
from indb_tensile.bench.harness.networks import known_networks as networks
from indb_tensile.bench.harness.processes.argument_types import number, portion, whole
from indb_tensile.bench.harness.processes.process_exit import run
from indb_tensile.bench.harness.results.rows import stamped
from indb_tensile.executor.capture.rank_share import Reduce
from indb_tensile.scheduler.timing.simulate_ranks import RankRun, simulate_ranks, without_waits

Row = dict[str, Any]

_CNN = {"type": "cnn", "channels": [48], "depth": 6, "hidden": [128], "dropout": 0.2, "batch_norm": False}
_BLOCKS = {"type": "transformer_encoder", "heads": 4, "layers": 2, "feedforward": 512, "dropout": 0.1}
_TRANSFORMER = {"type": "layers", "layers": [_BLOCKS, {"type": "flatten"}, {"type": "linear"}]}
_MLP = {"type": "mlp", "hidden": [2048] * 3, "dropout": 0.2}
_LSTM = {"type": "layers", "layers": [{"type": "lstm", "hidden": 256}, {"type": "flatten"}, {"type": "linear"}]}
_WIDE = {"type": "mlp", "hidden": [512] * 6}
NETWORKS = {
    network.name: network
    for network in (
        SmallNetwork(name="cnn", architecture=_CNN, shape=(1, 8, 8), rows=256),  # few parameters, much to compute
        SmallNetwork(name="transformer", architecture=_TRANSFORMER, shape=(16, 128), rows=128),
        SmallNetwork(name="mlp", architecture=_MLP, shape=(64,), rows=256),  # 34 MB of parameters
        SmallNetwork(name="lstm", architecture=_LSTM, shape=(32, 64), rows=64),
        SmallNetwork(name="wide", architecture=_WIDE, shape=(64,), rows=128),  # little to compute, much to exchange
    )
}
EXACT, FAST = Reduce.EXACT.value, Reduce.FAST.value


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOptions:
    """Options of one comparison."""

    ranks: tuple[int, ...] = (1, 2)
    bits: int = 4
    parts: int = 4
    share: float = 0.7
    rounds: int = 5
    iterations: int = 3
    turn_s: float = 0.0


@dataclass(slots=True)
class _Entry:
    """What one contender of one team has shown."""

    team: RankTeam
    method: RankMethod
    plans: list[PlannedMemory | None]
    rounds: list[list[RankTurn]] = field(default_factory=list)

    def long_enough(self, options: RankOptions) -> int:
        """Return the iterations of a turn, after one that is not counted.

        From the latencies of that turn the first round is foretold.
        """
        slowest_ns = max(turn.step_ns for turn in self.team.turn(self.method, options.iterations))
        return max(options.iterations, ceil(options.turn_s * 1e9 / slowest_ns))

    @property
    def times_ns(self) -> list[float]:
        """The time of the slowest rank in each round."""
        return [max(turn.step_ns for turn in turns) for turns in self.rounds]

    @property
    def digests(self) -> set[str]:
        """The digests of the parameters of all ranks in all rounds."""
        return {turn.digest for turns in self.rounds for turn in turns}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each number of ranks and contender. The exit code is 1 if a promise is broken."""
    options = _parser().parse_args(arguments)
    run_each_alone(options.models, known=_known)
    preload()
    preload_children()
    chosen = RankOptions(
        ranks=tuple(options.ranks),
        bits=options.bits,
        parts=options.parts,
        share=options.share,
        rounds=options.rounds,
        iterations=options.iterations,
        turn_s=options.seconds,
    )
    broken = 0
    for name in options.models:
        source = NETWORKS.get(name) or BenchmarkCase.of(name, options.batch, options.side, emulated=True)
        rows = measure(source, chosen)
        for row in rows:
            print(stamped(row) if options.json else _line(row), flush=True)
        for fault in faults(rows):
            print(fault, file=sys.stderr if options.json else sys.stdout, flush=True)
            broken += 1
    sys.exit(int(broken > 0))


def measure(source: SubjectSource, options: RankOptions) -> list[Row]:
    """Return a row for each number of ranks and contender, those of one rank and DDP's first."""
    subject = source.subject()
    labels = {"network": subject.name, "batch": len(subject.x), "parts": options.parts}
    with ExitStack() as stack:
        teams = [stack.enter_context(RankTeam(source, ranks=n, parts=options.parts)) for n in options.ranks]
        entries = [
            _Entry(team=team, method=method, plans=team.plan(method))
            for team in teams
            for method in methods(team.ranks, options.share)
        ]
        # Parameters are compared after each turn, so all turns have the same number of iterations.
        iterations = max(entry.long_enough(options) for entry in entries)
        for _ in range(options.rounds):
            for entry in entries:
                entry.rounds.append(entry.team.turn(entry.method, iterations))
        rows = [labels | _figures(entry, entries, len(subject.x)) for entry in entries]
    if options.bits:
        rows += [labels | row for row in _bits_only(source, options, iterations)]
    _compare_bits(rows)
    return rows


def methods(ranks: int, share: float) -> list[RankMethod]:
    """Return the contenders of so many ranks."""
    torchs = [RankMethod(name=DDP), RankMethod(name=DDP_ZERO, divides_state=True)][: min(ranks, 2)]
    whole_state = [method for method in _ours(ranks) if not method.divides_state]
    less = [replace(method, name=f"{method.name}, {share:.0%}", memory_share=share) for method in whole_state]
    return [*torchs, *_ours(ranks), *less]


def _ours(ranks: int) -> list[RankMethod]:
    """Return our ways to train on so many ranks, in as much memory as DDP has. One device has nothing to divide."""
    ways = [RankMethod(name=way.value, reduce=way) for way in (Reduce.EXACT, Reduce.FAST)]
    divided = RankMethod(name=f"{EXACT}, divided", reduce=Reduce.EXACT, divides_state=True)
    return [*ways, divided] if ranks > 1 else ways[:1]


def faults(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a sentence for each promise of ours that is broken. The running statistics of DDP's ranks differ."""
    for row in rows:
        subject = f"{row['network']}, {row['ranks']} ranks, {row['method']}"
        if row["reduce"] is not None and not row["equal_ranks"]:
            yield f"{subject}: the ranks end with different parameters"
        if row["reduce"] == EXACT and not row["exact_bits"]:
            yield f"{subject}: the parameters are not those of one device with the same parts"
        if row["planned_bytes"] is not None and row["peak_bytes"] > row["planned_bytes"]:
            yield f"{subject}: the peak is {row['peak_bytes'] - row['planned_bytes']} bytes above that of the plan"


def _bits_only(source: SubjectSource, options: RankOptions, iterations: int) -> Iterator[Row]:
    """Run one turn of each sum of ours, each rank in less memory than the rank before."""
    with RankTeam(source, ranks=options.bits, parts=options.parts) as team:
        for like in _ours(options.bits):
            method = replace(like, name=f"{like.name}, bits", share_step=0.1)
            entry = _Entry(team=team, method=method, plans=team.plan(method))
            entry.rounds.append(team.turn(method, iterations))
            yield _common(entry)


def _figures(entry: _Entry, entries: Sequence[_Entry], batch: int) -> Row:
    (parallel,) = (e for e in entries if e.team is entry.team and e.method.name == DDP)
    foretold = [
        (_together_ns(runs), time_ns)
        for turns, time_ns in zip(entry.rounds, entry.times_ns, strict=True)
        if (runs := without_waits([turn.before for turn in turns if turn.before is not None]))
    ]
    time_ns = median(entry.times_ns)
    return (
        _common(entry)
        | _first_figures(entry)
        | {
            "samples_per_s": round(batch * 1e9 / time_ns, 2),
            "step_ms": round(time_ns / 1e6, 2),
            "ratio": round(median(d / t for d, t in zip(parallel.times_ns, entry.times_ns, strict=True)), 3),
            "sent_bytes": max(
                round(median(turn.sent_bytes for turn in rank)) for rank in zip(*entry.rounds, strict=True)
            ),
            "foretold_ms": round(median(p for p, _ in foretold) / 1e6, 2) if foretold else None,
            "forecast_error": round(median(t / p for p, t in foretold) - 1, 3) if foretold else None,
        }
    )


def _first_figures(entry: _Entry) -> Row:
    """Return how far the first forecast was from what was measured, and the time of all exchanges of an iteration.

    `exchange_ms` has the measured exchanges without waits for other ranks, and `late_ms` these waits of the rank that
    waits for the longest time.
    """
    rounds = [[turn.first for turn in turns if turn.first is not None] for turns in entry.rounds]
    measured = [[turn.measured for turn in turns if turn.measured is not None] for turns in entry.rounds]
    names = ("first_foretold_ms", "first_forecast_error", "first_exchange_ms", "exchange_ms", "late_ms")
    if not all(rounds):
        return dict.fromkeys(names)
    foretold_ns = [_together_ns(ranks) for ranks in rounds]
    errors = [time_ns / ns - 1 for time_ns, ns in zip(entry.times_ns, foretold_ns, strict=True)]
    exchanged_ns = [_exchanges_ns(without_waits(ranks)) for ranks in measured]
    figures = (
        round(median(foretold_ns) / 1e6, 2),
        round(median(errors), 3),
        round(median(map(_exchanges_ns, rounds)) / 1e6, 2),
        round(median(exchanged_ns) / 1e6, 2),
        round(median(map(_exchanges_ns, measured)) / 1e6 - median(exchanged_ns) / 1e6, 2),
    )
    return dict(zip(names, figures, strict=True))


def _together_ns(runs: Sequence[RankRun]) -> int:
    """Return the time of an iteration of these ranks together."""
    return max(own.forecast.iteration_ns for own in simulate_ranks(runs))


def _exchanges_ns(runs: Sequence[RankRun]) -> int:
    """Return the time of all exchanges of an iteration, of the rank with the longest."""
    return max(sum(time.alone_ns for time in run.exchanges) for run in runs)


def _common(entry: _Entry) -> Row:
    """Return what every row has."""
    plans = [plan for plan in entry.plans if plan is not None]
    return {
        "ranks": entry.team.ranks,
        "method": entry.method.name,
        "reduce": entry.method.reduce,
        "peak_bytes": max(turn.peak_bytes for turns in entry.rounds for turn in turns),
        "planned_bytes": max((plan.peak_bytes for plan in plans), default=None),
        "budget_bytes": max((plan.budget_bytes for plan in plans), default=None),
        "floor_bytes": max((plan.floor_bytes for plan in plans), default=None),
        "equal_ranks": all(len({turn.digest for turn in turns}) == 1 for turns in entry.rounds),
        "digests": sorted(entry.digests),
    }


def _compare_bits(rows: Sequence[Row]) -> None:
    """Replace the digests by whether they are those of one device, or else of the first number of ranks."""
    exact = next(row for row in rows if row["reduce"] == EXACT)["digests"]
    for row in rows:
        row["exact_bits"] = row.pop("digests") == exact


def _known(name: str) -> object:
    """Raise MissingError for an unknown network."""
    return NETWORKS.get(name) or networks.find(name)


def _line(row: Row) -> str:
    head = f"{row['network']:<10} {row['ranks']} ranks  {row['method']:<12}"
    bits = f"{'all ranks equal' if row['equal_ranks'] else 'RANKS DIFFER'}" + (
        ", bits of one device" if row["exact_bits"] else ""
    )
    memory = f"peak {row['peak_bytes'] / config.MIB:7.1f} MB"
    if "step_ms" not in row:
        return f"{head} {memory}  {bits}"
    forecast = (
        ""
        if row["foretold_ms"] is None
        else f", foretold {row['foretold_ms']} ms ({row['forecast_error']:+.1%}), "
        f"at first {row['first_foretold_ms']} ms ({row['first_forecast_error']:+.1%})"
    )
    exchanges = (
        f"; exchanges {row['exchange_ms']} ms and waits for the other ranks {row['late_ms']} ms, at first foretold "
        f"{row['first_exchange_ms']} ms"
        if row["exchange_ms"]
        else ""
    )
    return (
        f"{head} {row['samples_per_s']:7.2f} samples/s, {row['ratio']:.2f} of DDP's; "
        f"{row['step_ms']} ms{forecast}{exchanges}; "
        f"sends {row['sent_bytes'] / config.MIB:.1f} MB; {memory}  {bits}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    known = f"{', '.join(NETWORKS)} (default), or known networks"
    parser.add_argument("--models", nargs="+", metavar="NAME", default=list(NETWORKS), help=known)
    add_sizes(parser)
    parser.add_argument("--parts", type=whole(), default=4, help="parts of each batch, divided among the ranks")
    parser.add_argument("--ranks", type=whole(), nargs="+", default=[1, 2], help="numbers of ranks to time")
    parser.add_argument("--bits", type=whole(0), default=4, help="ranks whose bits alone are compared; 0: none")
    parser.add_argument("--share", type=portion, default=0.7, help="share of DDP's memory of the last rows")
    parser.add_argument("--rounds", type=whole(), default=5)
    parser.add_argument(
        "--iterations", type=whole(), default=3, help="least iterations of a turn, after one to warm up"
    )
    parser.add_argument("--seconds", type=number(0), default=0.5, help="least time of a turn")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    return parser


if __name__ == "__main__":
    run(main)
