"""Runs the planner in a thread, so that the controller's loop does not wait for plans, which may take seconds.

It is a thread and not a process because the search is native code that releases the interpreter lock, and because the
planner's caches are keyed by the graph objects. A plan that is no longer needed is still computed to its end, and
then dropped.

While no other planning is needed, a second thread improves plans that trainers already follow (`RenewFor`), and looks
for rounds in which these jobs are faster (`RoundFor`). It runs
at a lower priority than the loop, and is cancelled as soon as something else is to be planned. The result of a
cancelled improvement is not stored, so plans depend on the questions alone.
"""

import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from indb_tensile.scheduler.admission.events import Answered
from indb_tensile.scheduler.admission.pool import Planner
from indb_tensile.scheduler.admission.questions import (
    Answer,
    LeastFor,
    PlacedFor,
    PlanFor,
    Question,
    RenewFor,
    RoundFor,
    TradeOffsFor,
    Unanswered,
    answer,
)
from indb_tensile.scheduler.completion.demand import TradeOff
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.planner import JobPlan
from indb_tensile.scheduler.policies.policy import Plans
from indb_tensile.scheduler.timing.job_runs import Compute
from indb_tensile.scheduler.timing.rank_steps import PublishedStep
from indb_tensile.scheduler.workload import Workload

log = logging.getLogger("controller")

NICENESS = 5  # niceness of the thread that improves plans: that of trainers, from which it takes processor time

_Questions = queue.SimpleQueue[Question | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredAnswer:
    """The answer to one question, or the exception that the planner raised."""

    question: Question
    answer_or_error: Answer | Exception


class ImprovementCancellation:
    """Cancels the improvement of plans: the improving search calls `check`, the owner calls `begin` and `end`."""

    def __init__(self) -> None:
        self._cancelled = False

    def begin(self) -> None:
        """Allow improvements from now on."""
        self._cancelled = False

    def end(self) -> None:
        """Cancel improvements, until the next `begin`."""
        self._cancelled = True

    def check(self) -> None:
        """Raise ImprovementCancelled if the improvement was cancelled."""
        if self._cancelled:
            raise ImprovementCancelled


class ImprovementCancelled(Exception):  # noqa: N818 - not an error: it unwinds a search that was cancelled
    """The improvement was cancelled because something else is to be planned."""


class BackgroundPlanner:
    """A `Planner` that answers from stored answers, and computes missing ones in its threads.

    `tell` is called from these threads after each computed or cancelled question. `cancellation` is the object by
    which improvements are cancelled. An exception of the planner is stored as the answer, and raised to the caller
    that looks the answer up.
    """

    def __init__(
        self, planner: Planner, tell: Callable[[Answered], None], cancellation: ImprovementCancellation | None = None
    ) -> None:
        self._planner = planner
        self._tell = tell
        self._answers: tuple[_StoredAnswer, ...] = ()  # replaced as a whole: a thread appends while the loop reads
        self._lock = threading.Lock()
        self._planning_ns = 0
        self._cancellation = cancellation or ImprovementCancellation()
        self._questions: _Questions = queue.SimpleQueue()
        self._renewals: _Questions = queue.SimpleQueue()
        self._threads = (
            threading.Thread(target=self._answer_questions, args=(self._questions, 0), name="planner"),
            threading.Thread(target=self._answer_questions, args=(self._renewals, NICENESS), name="improver"),
        )
        for thread in self._threads:
            thread.start()

    def ask(self, question: Question) -> None:
        """Queue a question; returns at once."""
        if isinstance(question, RenewFor | RoundFor):
            self._cancellation.begin()
            self._renewals.put(question)
        else:
            self._questions.put(question)

    def cancel_improvements(self) -> None:
        """Cancel improvements. A cancelled improvement also calls `tell`, so the loop never waits for its answer."""
        self._cancellation.end()

    def forget(self) -> int:
        """Drop all stored answers, since all jobs are planned. Returns the nanoseconds spent on them."""
        with self._lock:
            planning_ns, self._planning_ns, self._answers = self._planning_ns, 0, ()
        return planning_ns

    def close(self) -> None:
        """Wait for the plan under way, if any: a thread cannot be ended in the middle of native code."""
        self.cancel_improvements()
        for questions in (self._questions, self._renewals):
            questions.put(None)
        for thread in self._threads:
            thread.join()

    def plan(self, workloads: tuple[Workload, ...], *, budget_bytes: int) -> tuple[JobPlan, ...] | Infeasible:
        """Answer as `Planner.plan`. Raises Unanswered if the answer is not stored."""
        plans = self._look_up(PlanFor(workloads=workloads, budget_bytes=budget_bytes))
        return cast(tuple[JobPlan, ...] | Infeasible, plans)

    def renew(
        self, workloads: tuple[Workload, ...], plans: tuple[JobPlan, ...], *, budget_bytes: int, thorough: bool = True
    ) -> tuple[JobPlan, ...] | None:
        """Answer as `Planner.renew`. Raises Unanswered if the answer is not stored."""
        renewed = self._look_up(
            RenewFor(workloads=workloads, plans=plans, budget_bytes=budget_bytes, thorough=thorough)
        )
        return cast(tuple[JobPlan, ...] | None, renewed)

    def plan_round(
        self,
        workloads: tuple[Workload, ...],
        plans: Plans,
        *,
        budget_bytes: int,
        region_bytes: int,
        compute: Compute,
    ) -> tuple[JobPlan, ...] | None:
        """Answer as `Planner.plan_round`. Raises Unanswered if the answer is not stored."""
        question = RoundFor(
            workloads=workloads, plans=plans, budget_bytes=budget_bytes, region_bytes=region_bytes, compute=compute
        )
        return cast(tuple[JobPlan, ...] | None, self._look_up(question))

    def least_bytes(self, workload: Workload) -> int:
        """Answer as `Planner.least_bytes`. Raises Unanswered if the answer is not stored."""
        return cast(int, self._look_up(LeastFor(workload=workload)))

    def trade_offs(self, workload: Workload) -> tuple[TradeOff, ...]:
        """Answer as `Planner.trade_offs`. Raises Unanswered if the answer is not stored."""
        return cast(tuple[TradeOff, ...], self._look_up(TradeOffsFor(workload=workload)))

    def placed_bytes(self, workload: Workload, plan: JobPlan, *, region_bytes: int) -> int:
        """Answer as `Planner.placed_bytes`. Raises Unanswered if the answer is not stored."""
        return cast(int, self._look_up(PlacedFor(workload=workload, plan=plan, region_bytes=region_bytes)))

    def foresee(self, workloads: tuple[Workload, ...], plans: tuple[JobPlan, ...]) -> tuple[JobPlan, ...]:
        """Answer as `Planner.foresee`, without a thread: it takes milliseconds."""
        return self._planner.foresee(workloads, plans)

    def rank_step(self, workload: Workload, plan: JobPlan) -> PublishedStep:
        """Answer as `Planner.rank_step`, without a thread: it takes milliseconds, once for each plan."""
        return self._planner.rank_step(workload, plan)

    def _look_up(self, question: Question) -> Answer:
        for stored in self._answers:
            if stored.question == question:
                if isinstance(stored.answer_or_error, Exception):
                    raise stored.answer_or_error
                return stored.answer_or_error
        raise Unanswered(question)

    def _answer_questions(self, questions: "_Questions", niceness: int) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + niceness)
        while (question := questions.get()) is not None:
            started_ns = time.monotonic_ns()
            answer_or_error: Answer | Exception
            try:
                answer_or_error = answer(self._planner, question)
            except ImprovementCancelled:
                self._tell(Answered())
                continue
            except Exception as error:  # noqa: BLE001 - stored, and raised when the answer is looked up
                answer_or_error = error
            took_ns = time.monotonic_ns() - started_ns
            log.debug("planning took %.0f ms: %s", took_ns / 1e6, _described(question))
            with self._lock:
                self._planning_ns += took_ns
                self._answers = (*self._answers, _StoredAnswer(question=question, answer_or_error=answer_or_error))
            self._tell(Answered())


def _described(question: Question) -> str:
    """Describe the question for the log: its kind, its jobs, and its budget."""
    match question:
        case PlanFor() | RenewFor() | RoundFor():
            workloads, budget = question.workloads, f" within {question.budget_bytes} bytes"
        case _:
            workloads, budget = (question.workload,), ""
    jobs = ", ".join(str(workload.job) for workload in workloads)
    return f"{type(question).__name__} jobs {jobs}{budget}"
