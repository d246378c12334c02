"""The planner in a thread of its own: the loop goes on while a plan is made, which may take seconds.

A thread and not a process: the search is native and releases the interpreter lock, and what is remembered of a graph
is found again by the graph itself. A plan that nobody asks for any more is made to its end, and then forgotten.
"""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    question: Question
    found: Answer | Exception


class ThinkingPlanner:
    """A `Planner` that knows what it was asked before; `tell` is called from its thread when it knows more.

    What the planner itself raises is raised to whoever asks for that answer.
    """

    def __init__(self, planner: Planner, tell: Callable[[Answered], None]) -> None:
        self._planner = planner
        self._tell = tell
        self._known: tuple[_Known, ...] = ()  # replaced whole: the thread adds, the loop forgets
        self._changing = threading.Lock()
        self._spent_ns = 0
        self._questions: queue.SimpleQueue[Question | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._think, name="planner")
        self._thread.start()

    def ask(self, question: Question) -> None:
        """Think about this; returns at once."""
        self._questions.put(question)

    def forget(self) -> int:
        """All jobs are planned: what was known is not needed again. The nanoseconds that it took to find out."""
        with self._changing:
            spent_ns, self._spent_ns, self._known = self._spent_ns, 0, ()
        return spent_ns

    def close(self) -> None:
        """Wait for the plan under way, if there is one; the thread cannot be ended in the middle of native code."""
        self._questions.put(None)
        self._thread.join()

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

    def _think(self) -> None:
        while (question := self._questions.get()) is not None:
            started_ns = time.monotonic_ns()
            found: Answer | Exception
            try:
                found = answer(self._planner, question)
            except Exception as error:  # noqa: BLE001 - raised where the answer is looked up
                found = error
            with self._changing:
                self._spent_ns += time.monotonic_ns() - started_ns
                self._known = (*self._known, _Known(question=question, found=found))
            self._tell(Answered())
