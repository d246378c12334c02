"""Predicts what a training would need under each policy, before the job is queued: captures, plans and simulates it.

The capture allocates no tensors. The times of operators are those that the catalog has measured on this kind of
device, else those of the latency predictor, else, if no predictor is trained, the roofline's estimate.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from indb_tensile import config
from indb_tensile.device.backend import uploads_ahead
from indb_tensile.executor.capture.rank_share import RankShare
from indb_tensile.executor.capture.step_capture import CapturedStep
from indb_tensile.executor.latency.latency_predictor import Predictor
from indb_tensile.executor.ranks.exchange_traffic import stored_signatures
from indb_tensile.executor.ranks.foretold_rank import foretold_rank
from indb_tensile.learning.networks.registered_network import RegisteredNetwork
from indb_tensile.scheduler.admission.outlook import Outlook, StartForecast, foretell_start
from indb_tensile.scheduler.completion.demand import JobDemand
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.next_batch import BATCH_NAMES, batch_tensors, buffer_bytes
from indb_tensile.scheduler.plan import Infeasible, Plan
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.planner import JobPlan, Workload, foresee, least_bytes, plan_jobs
from indb_tensile.scheduler.score import Baseline, baselines, score
from indb_tensile.scheduler.timing.job_runs import Forecast
from indb_tensile.scheduler.timing.network_times import GangNetwork
from indb_tensile.scheduler.timing.simulate_ranks import RankRun, simulate_ranks
from indb_tensile.scheduler.trade_offs import trade_offs
from indb_tensile.sizes import size

from .exchange_outline import ExchangeOutline
from .explained_steps import (
    UNQUEUED,
    Known,
    capture_steps,
    coverage_text,
    explained_workload,
    own_latencies,
    rank_share,
    step_signatures,
    steps_by_length,
)
from .gang_outline import GangOutline, outline_gang
from .length_costs import LengthCosts
from .requests import Explain
from .training_outline import TrainingOutline, outline

_UNBOUNDED_BYTES = 1 << 62
_BASELINES = ("vanilla", "liveness")
_NS_PER_MS = 1_000_000
_BYTES = ("peak_bytes", "floor_bytes", "bound_bytes")
_FIGURES = (
    *_BYTES,
    *(
        "msr_liveness",
        "iteration_us",
        "eor",
        "stall_out_us",
        "stall_in_us",
        "swaps",
        "out_bytes",
        "in_bytes",
        "faults",
    ),
)

Row = dict[str, Any]
Measured = Callable[[Iterable[str]], Known]
FindNetwork = Callable[[Mapping[str, Any], int], RegisteredNetwork | None]
FindGangNetwork = Callable[[int], GangNetwork | None]  # for a number of devices; None if so many have not met
Foretells = Callable[[], Predictor | None]  # None if no predictor is trained for this kind of device


@dataclass(frozen=True, slots=True, kw_only=True)
class _Room:
    """The memory that the job can have.

    `free_bytes` is free now (None: unknown), `whole_bytes` is the device's budget, and `limit_bytes` is the job's own
    limit.
    """

    free_bytes: int | None
    whole_bytes: int
    limit_bytes: int | None
    region_bytes: int

    @property
    def now_bytes(self) -> int:
        """The highest peak with which the job can start now. Memory is granted in whole regions."""
        free_bytes = self.whole_bytes if self.free_bytes is None else self.free_bytes
        return min(free_bytes // self.region_bytes * self.region_bytes, self.most_bytes)

    @property
    def most_bytes(self) -> int:
        """The highest peak with which the job can start if it is alone on the device."""
        return self.whole_bytes if self.limit_bytes is None else min(self.whole_bytes, self.limit_bytes)

    def starts_now(self, peak_bytes: int) -> bool | None:
        """Return whether a job with this peak could start now; None if the free memory is unknown."""
        if peak_bytes > self.most_bytes:
            return False
        return None if self.free_bytes is None else peak_bytes <= self.now_bytes

    def obstacle(self, peak_bytes: int) -> str:
        """Return why a job with this peak does not start now; empty if nothing prevents it."""
        needs = f"needs {size(peak_bytes)}"
        if self.limit_bytes is not None and peak_bytes > self.limit_bytes:
            return f"{needs}, more than its memory limit of {size(self.limit_bytes)}"
        if peak_bytes > self.whole_bytes:
            return f"{needs}, more than the device's budget of {size(self.whole_bytes)}"
        if self.free_bytes is not None and peak_bytes > self.now_bytes:
            return f"{needs}, and {size(self.free_bytes)} are free now: the job waits, or other jobs shrink"
        return ""


class Explainer:
    """Explains trainings for the device of this service's controller."""

    def __init__(
        self,
        measured: Measured,
        predictor: Foretells,
        settings: config.Settings,
        outlook: Callable[[], Outlook | None] = lambda: None,
        network: FindNetwork = lambda architecture, owner_oid: None,
        gang_network: FindGangNetwork = lambda devices: None,
        connection_bytes: Callable[[int], int] = lambda devices: 0,
        gang_budgets: Callable[[int], Sequence[tuple[str, int]]] = lambda devices: (),
    ) -> None:
        """`outlook` returns what the jobs on the device still need, or None if that is not known.

        `network` returns the registered network of an architecture that this owner may use, or None if it has none.
        `gang_network` returns the network between so many devices of this kind, and `connection_bytes` what the
        connection between them takes of each device, outside every plan. `gang_budgets` has the hosts and budgets of
        the largest devices of this kind.
        """
        self._gang_budgets = gang_budgets
        self._network = network
        self._gang_network = gang_network
        self._connection_bytes = connection_bytes
        self._outlook = outlook
        self._measured = measured
        self._predictor = predictor
        self._region_bytes = settings.region_bytes
        self._policy = settings.policy
        self._budget_bytes = settings.budget_bytes
        self._link = Link(out_bytes_per_s=settings.link_out_bytes_per_s, in_bytes_per_s=settings.link_in_bytes_per_s)
        self._place = torch.device("cuda" if settings.device.startswith("cuda") else "cpu")
        self._uploads_ahead = uploads_ahead(settings.device, cuda_graphs=settings.cuda_graphs)

    def explain(self, request: Explain) -> list[Row]:
        """Return one row per policy: the two baselines, then the configured policy.

        Raises RequestError, or one of its subclasses, for a request that could not be trained either.
        """
        network = self._network(request.spec.architecture, request.owner_oid)
        training = outline(request.spec, request.columns, request.rows, request.shares, network)
        share = rank_share(training, request.spec.devices)
        steps = capture_steps(training, share, self._place)
        gang = None if share is None else self._gang_network(share.ranks)
        measured = self._measured(step_signatures(steps).union(stored_signatures(steps, gang).values()))
        predictor = self._predictor()
        own_ns = own_latencies(steps, measured, predictor)
        workload = explained_workload(steps, own_ns, measured, share, gang)
        connection_bytes = 0 if share is None else self._connection_bytes(share.ranks)
        outlook = self._outlook()
        lent_bytes = 0 if outlook is None else outlook.lent_bytes  # these are free as soon as a job needs them
        room = _Room(
            free_bytes=(
                None if request.budget_bytes is None else max(0, request.budget_bytes + lent_bytes - connection_bytes)
            ),
            whole_bytes=self._budget_bytes - connection_bytes,
            limit_bytes=request.limit_bytes,
            region_bytes=self._region_bytes,
        )
        outcomes = [self._plan(workload, name, room) for name in (*_BASELINES, self._policy)]
        cache = PlanCache()
        against = baselines((workload,), self._link, cache=cache)
        costs = [self._by_length(training, workload, outcome.answer) for outcome in outcomes]
        rows = [
            self._row(workload, outcome, room, against, own, cache)
            for outcome, own in zip(outcomes, costs, strict=True)
        ]
        own = rows[-1]
        start, exchanged = None, ""
        if share is not None:
            forecasts = [
                self._together(steps[0], own_ns[0], outcome.answer, share, gang, measured) for outcome in outcomes
            ]
            exchanged = ExchangeOutline.of(
                steps[0], workload.latency_ns[0], forecasts[-1], share, gang, measured, connection_bytes
            ).text
            for row, forecast in zip(rows, forecasts, strict=True):
                if row["starts_now"]:
                    row["starts_now"] = None  # whether the other devices have room is not known here
                if forecast is not None and training.texts is None:
                    row["iteration_ms"] = forecast.iteration_ns / _NS_PER_MS
            together = self._on_devices(steps[0], own_ns[0], workload, share, gang, measured)
            if together is not None:
                exchanged = f"{exchanged}; {together.text}"
                if together.iteration_ns and training.texts is None:
                    own["iteration_ms"] = together.iteration_ns / _NS_PER_MS
        elif own["iteration_ms"] is not None:
            start = self._foretold(training, workload, request.owner_oid, outlook)
        if start is not None:
            own["starts_now"] = start.starts
        notes = (
            own["note"] if start is None else _start_text(start),
            training.network_choice,
            exchanged,
            "" if costs[-1] is None else costs[-1].text,
            self._upload_text(workload, outcomes[-1].answer),
            coverage_text(steps, measured, predictor),
        )
        own["note"] = "; ".join(filter(None, notes))
        return rows

    def _together(
        self,
        step: CapturedStep,
        own_ns: tuple[int, ...],
        answer: JobPlan | Infeasible,
        share: RankShare,
        gang: GangNetwork | None,
        measured: Known,
    ) -> Forecast | None:
        """Return the forecast of the training step on all devices together, each under the same plan; None without
        a plan.
        """
        if isinstance(answer, Infeasible) or gang is None:
            return None if isinstance(answer, Infeasible) else answer.forecast
        ranks = [
            foretold_rank(step, answer.plans[0], own_ns, share, gang, measured, link=self._link, host=host)
            for host in gang.hosts
        ]
        return simulate_ranks(ranks)[0].forecast

    def _on_devices(
        self,
        step: CapturedStep,
        own_ns: tuple[int, ...],
        workload: Workload,
        share: RankShare,
        gang: GangNetwork | None,
        measured: Known,
    ) -> GangOutline | None:
        """Return what is foretold on the largest devices, if these differ; None if too few of them are known."""
        devices = self._gang_budgets(share.ranks)
        if gang is None or len(devices) < share.ranks:
            return None
        kept_bytes = self._connection_bytes(share.ranks)

        def plan_within(budget_bytes: int) -> JobPlan | Infeasible:
            plans = plan_jobs((workload,), budget_bytes=budget_bytes, link=self._link, policy=self._policy)
            return plans if isinstance(plans, Infeasible) else plans[0]

        def rank_run(plan: Plan, host: str) -> RankRun:
            return foretold_rank(step, plan, own_ns, share, gang, measured, link=self._link, host=host)

        return outline_gang([(host, max(0, own - kept_bytes)) for host, own in devices], plan_within, rank_run)

    def _foretold(
        self, training: TrainingOutline, workload: Workload, owner_oid: int, outlook: Outlook | None
    ) -> StartForecast | None:
        """Return what the controller's own rule would decide about the job, and what that does to others."""
        points = () if outlook is None else trade_offs(workload, link=self._link, policy=self._policy)
        if outlook is None or not points:
            return None
        totals = [sum(ns) for ns in workload.latency_ns]
        longest_ns, trained_ns, evaluated_ns = totals[0], float(totals[0]), float(totals[-1])
        if training.texts is not None:
            trained_ns = training.texts.mean([totals[place] for place in steps_by_length(training)])
            evaluated_ns = training.texts.mean(totals[-len(training.texts.lengths) :])
        of_epoch = (training.steps * trained_ns + training.passes * evaluated_ns) / max(1, longest_ns)
        steps = max(1.0, training.settings.epochs * of_epoch)
        demand = JobDemand(
            job=UNQUEUED,
            owner=owner_oid,
            priority=0,
            steps=steps,
            steps_left=steps,
            trade_offs=points,
        )
        return foretell_start(outlook, demand)

    def _by_length(
        self, training: TrainingOutline, workload: Workload, answer: JobPlan | Infeasible
    ) -> LengthCosts | None:
        """Return what the step of each length costs, or None without a plan, and if texts have one length."""
        if training.texts is None or isinstance(answer, Infeasible):
            return None
        places = steps_by_length(training)
        steps = [(workload.graphs[place], answer.plans[place], workload.latency_ns[place]) for place in places]
        return LengthCosts.of(training.texts, steps, self._link)

    def _upload_text(self, workload: Workload, answer: JobPlan | Infeasible) -> str:
        """Return what an iteration takes if the next batch is uploaded ahead, in words. Empty where it never is."""
        if not self._uploads_ahead or isinstance(answer, Infeasible):
            return ""
        (ahead,) = foresee((replace(workload, batch=BATCH_NAMES),), (answer,), link=self._link)
        (lent,) = foresee((replace(workload, batch=BATCH_NAMES, batch_beside=True),), (answer,), link=self._link)
        graph = workload.graphs[0]
        size_bytes = buffer_bytes(graph, batch_tensors(graph, BATCH_NAMES))
        return upload_text(answer.forecast, ahead.forecast, lent.forecast, size_bytes)

    def _plan(self, workload: Workload, policy: str, room: _Room) -> "_PlanOutcome":
        """Plan within the memory that is free now, else within the whole device, else without a limit."""
        budgets = [_UNBOUNDED_BYTES] if policy in _BASELINES else [room.now_bytes, room.most_bytes]
        start_ns = time.perf_counter_ns()
        for budget_bytes in budgets:
            plans = plan_jobs((workload,), budget_bytes=budget_bytes, link=self._link, policy=policy)
            if not isinstance(plans, Infeasible):
                break
        answer = plans if isinstance(plans, Infeasible) else plans[0]
        return _PlanOutcome(policy=policy, answer=answer, planning_ns=time.perf_counter_ns() - start_ns)

    def _row(
        self,
        workload: Workload,
        outcome: "_PlanOutcome",
        room: _Room,
        against: tuple[Baseline, ...],
        costs: LengthCosts | None,
        cache: PlanCache,
    ) -> Row:
        """Return one row of the answer, with the figures that `tensile plan` and the benchmark use.

        Times are means over the batches of an epoch, if texts have several lengths.
        """
        figures: Row = dict.fromkeys(_FIGURES)
        if isinstance(outcome.answer, Infeasible):
            figures.update(peak_bytes=outcome.answer.needed_bytes, floor_bytes=least_bytes(workload))
        else:
            (scored,) = score((workload,), (outcome.answer.plans,), self._link, against=against, cache=cache)
            figures = scored.figures() | ({} if costs is None else costs.figures())
        return {
            "policy": outcome.policy,
            **{name: figures[name] for name in _BYTES},
            "saved": figures["msr_liveness"],
            "iteration_ms": _ms(figures["iteration_us"]),
            "overhead": figures["eor"],
            "stall_ms": _ms(figures["stall_out_us"], figures["stall_in_us"]),
            "swaps": figures["swaps"],
            "swapped_bytes": _sum(figures["out_bytes"], figures["in_bytes"]),
            "recomputed": None if isinstance(outcome.answer, Infeasible) else outcome.answer.plans[0].recomputed,
            "planning_ms": outcome.planning_ns / _NS_PER_MS,
            "starts_now": room.starts_now(figures["peak_bytes"]),
            "note": "; ".join(filter(None, (*(figures["faults"] or ()), room.obstacle(figures["peak_bytes"])))),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlanOutcome:
    """The answer of a policy, and how long it took."""

    policy: str
    answer: JobPlan | Infeasible
    planning_ns: int


def _start_text(start: StartForecast) -> str:
    """Return in words what is foretold for the job."""
    seconds = start.end_ns / 1e9
    done = f"done after about {seconds:.1f} s" if seconds < 10 else f"done after about {seconds:.0f} s"
    if not start.starts:
        ahead = f" behind {start.ahead} other{'s' if start.ahead > 1 else ''}" if start.ahead else ""
        return f"it would wait{ahead} at first, because all jobs together are then done sooner; {done}"
    if not start.slowdowns:
        return f"it would start at once; {done}"
    slowed = " and ".join(f"job {job} {factor:.2f} times as long" for job, factor in start.slowdowns)
    return f"it would start at once, and an iteration would then take {slowed}; {done}"


def upload_text(alone: Forecast, ahead: Forecast, lent: Forecast, size_bytes: int) -> str:
    """Return what uploading the next batch ahead saves.

    `alone` is the forecast where iterations upload their own batches, `ahead` that with the plan's own room, and
    `lent` that with memory for a batch of `size_bytes` beside the plan.
    """
    waits = f"an iteration waits {alone.upload_ns / _NS_PER_MS:.2f} ms for its batch"
    if ahead.iteration_ns >= alone.iteration_ns:
        waits = f"{waits}, as the plan has no room to upload the next one ahead"
    else:
        waits = f"{waits}; where the next batch is uploaded ahead {_duration(ahead)}"
    if lent.iteration_ns >= ahead.iteration_ns:
        return waits
    return f"{waits}; as long as {size(size_bytes)} are free beside the plan {_duration(lent)}"


def _duration(forecast: Forecast) -> str:
    ms, waits_ms = forecast.iteration_ns / _NS_PER_MS, forecast.upload_ns / _NS_PER_MS
    return f"it takes {ms:.2f} ms and waits {waits_ms:.2f} ms"


def _ms(*microseconds: float | None) -> float | None:
    total = _sum(*microseconds)
    return None if total is None else total / 1000


def _sum(*values: float | None) -> float | None:
    """Return the sum, or None if any value is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
