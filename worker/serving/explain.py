"""What a training would need, by policy, before it is enqueued: captured without memory, planned, simulated.

Operator times are those that the catalog has measured on this kind of device, else those that its predictor
foretells, else, while none is trained, the roofline's estimate.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from indb_tensile import config
from indb_tensile.executor import hardware
from indb_tensile.executor.capture import CapturedStep, capture_evaluation, capture_training
from indb_tensile.executor.predictor import Predictor, foretell
from indb_tensile.job import JobId
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.planner import JobPlan, Workload, plan_jobs

from ..training.steps import optimizer_settings
from .outline import Outline, outline
from .requests import Explain

_JOB = JobId(0)  # it has no number yet
_UNBOUNDED_BYTES = 1 << 62
_BASELINES = ("vanilla", "liveness")
_NS_PER_MS = 1_000_000

Row = dict[str, Any]
# Latency in ns and workspace in bytes of those operators that are known, by signature.
Known = dict[str, tuple[int, int]]
Measured = Callable[[Iterable[str]], Known]
Foretells = Callable[[], Predictor | None]  # None while no predictor is trained for this kind of device


@dataclass(frozen=True, slots=True, kw_only=True)
class _Room:
    """How much memory the job could have: what is free now (None: not known), the device's budget, its own limit."""

    free_bytes: int | None
    whole_bytes: int
    limit_bytes: int | None
    region_bytes: int

    @property
    def now_bytes(self) -> int:
        """What its peak may be now; memory is granted in whole regions."""
        free_bytes = self.whole_bytes if self.free_bytes is None else self.free_bytes
        return min(free_bytes // self.region_bytes * self.region_bytes, self.most_bytes)

    @property
    def most_bytes(self) -> int:
        """What its peak may be when it is alone on the device."""
        return self.whole_bytes if self.limit_bytes is None else min(self.whole_bytes, self.limit_bytes)

    def starts_now(self, peak_bytes: int) -> bool | None:
        """Whether a job of this peak could start; None where it is not known what is free."""
        if peak_bytes > self.most_bytes:
            return False
        return None if self.free_bytes is None else peak_bytes <= self.now_bytes

    def obstacle(self, peak_bytes: int) -> str:
        """Why a job of this peak does not start now; empty where nothing is in its way."""
        needs = f"needs {_size(peak_bytes)}"
        if self.limit_bytes is not None and peak_bytes > self.limit_bytes:
            return f"{needs}, more than its memory limit of {_size(self.limit_bytes)}"
        if peak_bytes > self.whole_bytes:
            return f"{needs}, more than the device's budget of {_size(self.whole_bytes)}"
        if self.free_bytes is not None and peak_bytes > self.now_bytes:
            return f"{needs}, of which {_size(self.free_bytes)} are free now: waits, or others are asked for room"
        return ""


class Explainer:
    """Explains trainings for the device of this service's controller."""

    def __init__(self, measured: Measured, predictor: Foretells, settings: config.Settings) -> None:
        self._measured = measured
        self._predictor = predictor
        self._region_bytes = settings.region_bytes
        self._policy = settings.policy
        self._budget_bytes = settings.budget_bytes
        self._link = Link(out_bytes_per_s=settings.link_out_bytes_per_s, in_bytes_per_s=settings.link_in_bytes_per_s)

    def explain(self, request: Explain) -> list[Row]:
        """One row per policy: the two baselines, then the one that the controller follows.

        Raises RequestError and its kinds for what could not be trained either.
        """
        steps = _captured(outline(request.spec, request.columns, request.rows))
        measured = self._measured(_signatures(steps))
        predictor = self._predictor()
        workload = _workload(steps, measured, predictor)
        room = _Room(
            free_bytes=request.budget_bytes,
            whole_bytes=self._budget_bytes,
            limit_bytes=request.limit_bytes,
            region_bytes=self._region_bytes,
        )
        liveness = self._plan(workload, "liveness", _UNBOUNDED_BYTES)
        assert isinstance(liveness, JobPlan)
        found = {name: self._planned(workload, name, room) for name in (*_BASELINES, self._policy)}
        rows = [_row(name, plan, liveness, room) for name, plan in found.items()]
        rows[-1]["note"] = "; ".join(filter(None, (rows[-1]["note"], _coverage(steps, measured, predictor))))
        return rows

    def _planned(self, workload: Workload, policy: str, room: _Room) -> JobPlan | Infeasible:
        """The plan within what is free now, else within the whole device, else whatever it needs."""
        budgets = [_UNBOUNDED_BYTES] if policy in _BASELINES else [room.now_bytes, room.most_bytes]
        for budget_bytes in budgets:
            found = self._plan(workload, policy, budget_bytes)
            if isinstance(found, JobPlan):
                break
        return found

    def _plan(self, workload: Workload, policy: str, budget_bytes: int) -> JobPlan | Infeasible:
        found = plan_jobs((workload,), budget_bytes=budget_bytes, link=self._link, policy=policy)
        return found if isinstance(found, Infeasible) else found[0]


def _captured(training: Outline) -> tuple[CapturedStep, ...]:
    """The graphs of the job: each size of training step, then the validation pass."""
    module, loss, optimizer = training.module, training.loss, optimizer_settings(training.settings)
    steps = [capture_training(module, loss, *training.batch(rows), optimizer) for rows in training.batches]
    steps.append(capture_evaluation(module, loss, *training.batch(training.batches[0]), optimizer))
    return tuple(steps)


def _workload(steps: tuple[CapturedStep, ...], measured: Known, predictor: Predictor | None) -> Workload:
    workspace = {signature: workspace_bytes for signature, (_, workspace_bytes) in measured.items()}
    graphs = tuple(step.with_measured(workspace).graph for step in steps)
    latency_ns = tuple(
        _latencies(graph, foretell(graph, step.descriptions, hardware.EMULATED_SPEED, predictor), measured)
        for graph, step in zip(graphs, steps, strict=True)
    )
    return Workload(job=_JOB, graphs=graphs, latency_ns=latency_ns)


def _latencies(graph: StepGraph, guesses: tuple[int, ...], measured: Known) -> tuple[int, ...]:
    pairs = zip(graph.operators, guesses, strict=True)
    return tuple(measured.get(operator.signature, (guess, 0))[0] for operator, guess in pairs)


def _row(policy: str, found: JobPlan | Infeasible, liveness: JobPlan, room: _Room) -> Row:
    """One line of the answer. Overhead is the time of an iteration as a ratio of the liveness run's."""
    if isinstance(found, Infeasible):
        shown: Row = dict.fromkeys(("iteration_ms", "overhead", "swaps", "swapped_bytes"))
        peak_bytes = found.needed_bytes
    else:
        shown = {
            "iteration_ms": found.forecast.iteration_ns / _NS_PER_MS,
            "overhead": found.forecast.iteration_ns / liveness.forecast.iteration_ns,
            "swaps": found.swaps,
            "swapped_bytes": found.swapped_bytes,
        }
        peak_bytes = found.peak_bytes
    return {
        "policy": policy,
        "peak_bytes": peak_bytes,
        "floor_bytes": liveness.floor_bytes,
        **shown,
        "starts_now": room.starts_now(peak_bytes),
        "note": room.obstacle(peak_bytes),
    }


def _coverage(steps: tuple[CapturedStep, ...], measured: Known, predictor: Predictor | None) -> str:
    signatures = _signatures(steps)
    known = len(signatures & measured.keys())
    if known == len(signatures):
        return "operator times as measured on this kind of device"
    others = "estimated" if predictor is None else "predicted"
    return f"{known} of {len(signatures)} kinds of operator measured on this kind of device, the others {others}"


def _signatures(steps: tuple[CapturedStep, ...]) -> frozenset[str]:
    return frozenset().union(*(step.signatures for step in steps))


def _size(size_bytes: int) -> str:
    """As PostgreSQL's pg_size_pretty writes it, roughly."""
    return f"{size_bytes / config.MIB:.0f} MB" if size_bytes >= config.MIB else f"{size_bytes} bytes"
