"""The planner in a thread of its own: the loop goes on while a plan is made, which may take seconds.

A thread and not a process: the search is native and releases the interpreter lock, and what is remembered of a graph
is found again by the graph itself. A plan that nobody asks for any more is made to its end, and then forgotten.

Plans that are followed are improved while nobody waits (`RenewFor`): by a second thread, which yields the processor
to the loop, and is given up as soon as something else is to be planned. What was given up is not known: so plans
still depend on the questions alone.
"""

import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from indb_tensile.scheduler.admission.facts import Answered
from indb_tensile.scheduler.admission.pool import Planner
from indb_tensile.scheduler.admission.questions import (
    Answer,
    LeastFor,
    PlacedFor,
    PlanFor,
    Question,
    RenewFor,
    Unanswered,
    answer,
)
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.planner import JobPlan
from indb_tensile.scheduler.workload import Workload

NICENESS = 5  # of whoever improves plans: as of trainers, of whose processor's time it would take

_Questions = queue.SimpleQueue[Question | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    question: Question
    found: Answer | Exception


class Patience:
    """Until when plans may be improved: `heed` is for whoever improves them, the rest for who has them improved."""

    def __init__(self) -> None:
        self._over = False

    def begin(self) -> None:
        """From now on they may."""
        self._over = False

    def end(self) -> None:
        """No longer."""
        self._over = True

    def heed(self) -> None:
        """Raises GivenUp when they may no longer."""
        if self._over:
            raise GivenUp


class GivenUp(Exception):  # noqa: N818 - no fault: it unwinds a search that nobody waits for
    """Something else is to be planned."""


class ThinkingPlanner:
    """A `Planner` that knows what it was asked before; `tell` is called from its threads when it knows more.

    `patience` is what the planner heeds where it improves plans. What the planner itself raises is raised to whoever
    asks for that answer.
    """

    def __init__(self, planner: Planner, tell: Callable[[Answered], None], patience: Patience | None = None) -> None:
        self._planner = planner
        self._tell = tell
        self._known: tuple[_Known, ...] = ()  # replaced whole: the thread adds, the loop forgets
        self._changing = threading.Lock()
        self._spent_ns = 0
        self._patience = patience or Patience()
        self._questions: _Questions = queue.SimpleQueue()
        self._renewals: _Questions = queue.SimpleQueue()
        self._threads = (
            threading.Thread(target=self._think, args=(self._questions, 0), name="planner"),
            threading.Thread(target=self._think, args=(self._renewals, NICENESS), name="improver"),
        )
        for thread in self._threads:
            thread.start()

    def ask(self, question: Question) -> None:
        """Think about this; returns at once."""
        if isinstance(question, RenewFor):
            self._patience.begin()
            self._renewals.put(question)
        else:
            self._questions.put(question)

    def hurry(self) -> None:
        """Give up improving: something else is to be planned. Where it is given up, that is told as an answer is."""
        self._patience.end()

    def forget(self) -> int:
        """All jobs are planned: what was known is not needed again. The nanoseconds that it took to find out."""
        with self._changing:
            spent_ns, self._spent_ns, self._known = self._spent_ns, 0, ()
        return spent_ns

    def close(self) -> None:
        """Wait for the plan under way, if there is one; the thread cannot be ended in the middle of native code."""
        self.hurry()
        for questions in (self._questions, self._renewals):
            questions.put(None)
        for thread in self._threads:
            thread.join()

    def plan(self, workloads: tuple[Workload, ...], *, budget_bytes: int) -> tuple[JobPlan, ...] | Infeasible:
        """As `Planner.plan`. Raises Unanswered."""
        found = self._look_up(PlanFor(workloads=workloads, budget_bytes=budget_bytes))
        return cast(tuple[JobPlan, ...] | Infeasible, found)

    def renew(
        self, workloads: tuple[Workload, ...], plans: tuple[JobPlan, ...], *, budget_bytes: int
    ) -> tuple[JobPlan, ...] | None:
        """As `Planner.renew`. Raises Unanswered."""
        found = self._look_up(RenewFor(workloads=workloads, plans=plans, budget_bytes=budget_bytes))
        return cast(tuple[JobPlan, ...] | None, found)

    def least_bytes(self, workload: Workload) -> int:
        """As `Planner.least_bytes`. Raises Unanswered."""
        return cast(int, self._look_up(LeastFor(workload=workload)))

    def placed_bytes(self, workload: Workload, plan: JobPlan, *, region_bytes: int) -> int:
        """As `Planner.placed_bytes`. Raises Unanswered."""
        return cast(int, self._look_up(PlacedFor(workload=workload, plan=plan, region_bytes=region_bytes)))

    def foresee(self, workloads: tuple[Workload, ...], plans: tuple[JobPlan, ...]) -> tuple[JobPlan, ...]:
        """As `Planner.foresee`, at once: milliseconds."""
        return self._planner.foresee(workloads, plans)

    def _look_up(self, question: Question) -> Answer:
        for known in self._known:
            if known.question == question:
                if isinstance(known.found, Exception):
                    raise known.found
                return known.found
        raise Unanswered(question)

    def _think(self, questions: "_Questions", niceness: int) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + niceness)
        while (question := questions.get()) is not None:
            started_ns = time.monotonic_ns()
            found: Answer | Exception
            try:
                found = answer(self._planner, question)
            except GivenUp:
                self._tell(Answered())
                continue
            except Exception as error:  # noqa: BLE001 - raised where the answer is looked up
                found = error
            with self._changing:
                self._spent_ns += time.monotonic_ns() - started_ns
                self._known = (*self._known, _Known(question=question, found=found))
            self._tell(Answered())
