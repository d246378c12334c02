"""Draws the jobs of `bench trace`: arrivals, run times, owners and priorities, from a seed.

Run times follow Microsoft's Philly trace (Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN
Training Workloads", USENIX ATC 2019, section 2.4 and figure 2). `PERCENTILES` were read off the run times of about
83,300 jobs of that trace, which Weng et al. ("MLaaS in the Wild", NSDI 2022) published beside their own trace
(alibaba/clusterdata, cluster-trace-gpu-v2020/analysis/philly_runtime.csv). The run times are values of that file. The
shares belong to their places in the file, which were computed from positions in it and err by about one percent.
Between two percentiles the logarithm of the run time is interpolated.

Three things are ours. Run times are multiplied by `time_scale`, because tables in a database are trained on for
minutes rather than hours. The trace counts the hours of jobs with several GPUs, and here each job has the one device.
Arrivals are uniform over the time in which a device that takes turns does the whole work at `load` (a Poisson
process, given the number of jobs); the trace's days and nights are left out.

Owners have unequal shares of the jobs: the k-th owner has a share in proportion to 1 / k (Zipf). Some jobs have a
higher priority.
"""

import random
from bisect import bisect_right
from dataclasses import dataclass
from math import exp, log

from indb_tensile.bench.harness.virtual_time.trace_networks import JobKind
from indb_tensile.scheduler.admission.completion_rule import scaled_by
from indb_tensile.scheduler.completion.demand import TradeOff

# share of the jobs whose run time is at most so many seconds
PERCENTILES = (
    (0.0, 1),
    (0.04, 44),
    (0.145, 67),
    (0.18, 73),
    (0.34, 356),
    (0.375, 536),
    (0.55, 1_492),
    (0.575, 1_648),
    (0.74, 2_869),
    (0.765, 3_629),
    (0.89, 11_104),
    (0.915, 16_210),
    (0.985, 211_769),
    (0.9985, 1_000_000),
    (1.0, 4_628_239),
)
_SECOND_NS = 1_000_000_000
_LEAST_STEPS = 10.0  # a job trains at least so many steps


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """The distribution that jobs are drawn from.

    `error` is the standard deviation of the logarithm of true over foretold times of a job's operators.
    """

    jobs: int
    load: float = 0.9
    time_scale: float = 0.05
    owners: int = 6
    urgent: float = 0.1  # share of the jobs with a higher priority
    error: float = 0.1
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """One job of the trace. `pace` is the true time of its operators over the foretold time."""

    number: int
    owner: int
    priority: int
    arrival_ns: float
    kind: JobKind
    steps: float
    pace: float = 1.0

    def point(self, number: int) -> TradeOff:
        """Return one of the job's plans with its true times."""
        return scaled_by(self.kind.trade_offs[number], self.pace)

    @property
    def step_ns(self) -> int:
        """The true time of a step alone on the device, without plans."""
        return self.point(0).iteration_ns

    @property
    def alone_ns(self) -> float:
        """The true time of the whole job alone on the device, without plans."""
        return self.steps * self.step_ns


def run_time_s(share: float) -> float:
    """Return the run time in seconds that this share of the trace's jobs does not exceed."""
    at = min(bisect_right([part for part, _ in PERCENTILES], share), len(PERCENTILES) - 1)
    (low, low_s), (high, high_s) = PERCENTILES[at - 1], PERCENTILES[at]
    part = (share - low) / (high - low)
    return exp(log(low_s) + part * (log(high_s) - log(low_s)))


def draw_jobs(kinds: tuple[JobKind, ...], options: TraceOptions) -> tuple[TraceJob, ...]:
    """Return the jobs in the order of their arrivals. Equal options give equal jobs."""
    chance = random.Random(f"trace {options.seed} {options.jobs}")  # noqa: S311 - a fixed sequence is wanted
    shares = [1 / k for k in range(1, options.owners + 1)]
    drawn = []
    for _ in range(options.jobs):
        kind = chance.choice(kinds).scaled(chance.uniform(0.5, 1.0))
        pace = exp(chance.gauss(0.0, options.error))
        run_ns = run_time_s(chance.random()) * options.time_scale * _SECOND_NS
        (owner,) = chance.choices(range(1, options.owners + 1), shares)
        priority = 1 if chance.random() < options.urgent else 0
        drawn.append((kind, pace, run_ns, owner, priority))
    span_ns = sum(run_ns for _, _, run_ns, _, _ in drawn) / options.load
    arrivals = sorted(chance.uniform(0.0, span_ns) for _ in drawn)
    return tuple(
        TraceJob(
            number=number,
            owner=owner,
            priority=priority,
            arrival_ns=arrival_ns,
            kind=kind,
            steps=max(_LEAST_STEPS, run_ns / scaled_by(kind.trade_offs[0], pace).iteration_ns),
            pace=pace,
        )
        for number, (arrival_ns, (kind, pace, run_ns, owner, priority)) in enumerate(
            zip(arrivals, drawn, strict=True), start=1
        )
    )
