"""What one method made of the jobs of `bench trace`, and the figures that are computed from it.

- *Completion*: from a job's arrival to its end.
- *ANTT*: the mean over the jobs of completion divided by the job's time alone on the device.
- *Jain's index* (Jain, Chiu and Hawe 1984) between owners: (sum x)^2 / (n sum x^2). x is an owner's mean of its jobs'
  time alone divided by completion, which is 1 if the owner never waits. Service attained until the end would show
  nothing, since every job ends: it is what the owner asked for. The index is 1 if all owners are delayed alike,
  however much.
- *Changes*: how often a job that trained was stopped, or got another plan.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from statistics import fmean, median

from indb_tensile.bench.harness.results.rows import Row
from indb_tensile.bench.harness.virtual_time.trace_workload import TraceJob
from indb_tensile.errors import RequestError

COMPLETION = "completion"
ANY_PRICE = "any price"
FIRST_IN_FIRST_OUT = "first in first out"
SHORTEST_REMAINING = "shortest remaining first"
LEAST_ATTAINED = "least attained service"
PACKING = "packing"
ZICO = "zico"

MEAN_BAR = 1.05
DECISION_BAR_MS = 50.0
_SECOND_NS = 1_000_000_000
_FIGURES = ("mean_s", "median_s", "p99_s", "makespan_s", "antt", "jain", "changes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of each job, how often jobs were changed, and the time of decisions if the method is admission's.

    `decisions` are pairs of the number of runnable jobs and the processor time of the decision.
    """

    ends_ns: Mapping[int, float]
    attained_ns: Mapping[int, float]
    changes: int
    peak_bytes: int
    decisions: tuple[tuple[int, int], ...] = field(default=())


def figures(jobs: Sequence[TraceJob], outcome: Outcome) -> Row:
    """Return the figures of one run."""
    completion_s = sorted((outcome.ends_ns[job.number] - job.arrival_ns) / _SECOND_NS for job in jobs)
    first_ns = min(job.arrival_ns for job in jobs)
    return {
        "mean_s": fmean(completion_s),
        "median_s": median(completion_s),
        "p99_s": completion_s[ceil(0.99 * len(completion_s)) - 1],
        "makespan_s": (max(outcome.ends_ns.values()) - first_ns) / _SECOND_NS,
        "antt": fmean((outcome.ends_ns[job.number] - job.arrival_ns) / job.alone_ns for job in jobs),
        "jain": jain(_speeds(jobs, outcome)),
        "changes": outcome.changes,
        "peak_bytes": outcome.peak_bytes,
    }


def jain(values: Iterable[float]) -> float:
    """Return Jain's fairness index of these values: 1 if they are equal, 1 / n if all but one are 0."""
    numbers = list(values)
    return sum(numbers) ** 2 / (len(numbers) * sum(number**2 for number in numbers))


def _speeds(jobs: Sequence[TraceJob], outcome: Outcome) -> list[float]:
    speeds: dict[int, list[float]] = defaultdict(list)
    for job in jobs:
        speeds[job.owner].append(job.alone_ns / (outcome.ends_ns[job.number] - job.arrival_ns))
    return [fmean(of_owner) for of_owner in speeds.values()]


def decision_figures(outcomes: Sequence[Outcome], runnable: int = 0) -> Row:
    """Return the median and the largest time of decisions about at least this many runnable jobs, in milliseconds."""
    took_ms = [ns / 1e6 for outcome in outcomes for jobs, ns in outcome.decisions if jobs >= runnable]
    if not took_ms:
        return {"decision_ms": None, "decision_most_ms": None}
    return {"decision_ms": round(median(took_ms), 2), "decision_most_ms": round(max(took_ms), 2)}


def over_seeds(rows: Sequence[Row]) -> Row:
    """Return the median of each figure over the runs of the same method."""
    figured = {name: round(median(row[name] for row in rows), 4) for name in _FIGURES}
    return {**figured, "peak_bytes": max(row["peak_bytes"] for row in rows)}


def ratios(rows: Mapping[str, Sequence[Row]], rival: str, figure: str) -> tuple[float, ...]:
    """Return our figure divided by the rival's for the same jobs, one ratio for each seed."""
    pairs = zip(rows[COMPLETION], rows[rival], strict=True)
    return tuple(float(ours[figure]) / float(theirs[figure]) for ours, theirs in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One target: the median of the values, its limit, and whether it has to be at most or at least the limit."""

    text: str
    values: tuple[float, ...]  # one for each seed
    limit: float
    at_most: bool = True

    @property
    def value(self) -> float:
        """The median over the seeds."""
        return median(self.values)

    @property
    def met(self) -> bool:
        """Whether the target is met."""
        return self.value <= self.limit if self.at_most else self.value >= self.limit

    def line(self) -> str:
        """Return the line that is printed."""
        sign = "<=" if self.at_most else ">="
        verdict = "met    " if self.met else "NOT MET"
        spread = f" (seeds from {min(self.values):.4g} to {max(self.values):.4g})" if len(self.values) > 1 else ""
        return f"{verdict}  {self.text}: {self.value:.4g} {sign} {self.limit:g}{spread}"


def bars(rows: Mapping[str, Sequence[Row]]) -> tuple[Bar, ...]:
    """Return the targets for one number of jobs on one device.

    `rows` has the figures of each method, one for each seed.
    """
    return (
        Bar(
            text="mean completion over shortest remaining first's",
            values=ratios(rows, SHORTEST_REMAINING, "mean_s"),
            limit=MEAN_BAR,
        ),
        Bar(
            text="99th percentile over first in first out's",
            values=ratios(rows, FIRST_IN_FIRST_OUT, "p99_s"),
            limit=1.0,
        ),
        Bar(
            text="Jain's index over least attained service's",
            values=ratios(rows, LEAST_ATTAINED, "jain"),
            limit=1.0,
            at_most=False,
        ),
    )


def share_errors(path: Path) -> tuple[float, ...]:
    """Return |foretold / measured - 1| of the system throughput in each row of `bench share` that has both."""
    try:
        rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise RequestError(
            f"{path} cannot be read as rows of bench share: {error}",
            hint="Give a file with the output of tensile bench share --json.",
        ) from error
    pairs = [(row.get("stp_foretold"), row.get("stp_measured")) for row in rows if isinstance(row, dict)]
    errors = tuple(abs(foretold / measured - 1) for foretold, measured in pairs if foretold and measured)
    if not errors:
        raise RequestError(
            f"{path} has no row with stp_foretold and stp_measured",
            hint="Give a file with the output of tensile bench share --json.",
        )
    return errors
