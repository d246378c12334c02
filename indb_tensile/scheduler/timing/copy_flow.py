"""Model how copies progress on two shared lanes. Copies of one job run in order; copies of several jobs run side by
side.

A job's copies in one direction run one after the other. Copies of several jobs in the same direction share the lane
equally, as they do on the device, whose lanes serve the jobs in turns, chunk by chunk. (If each copy were served
whole in the order of request, a small copy would wait for every large copy before it.) In the limit of small chunks
this is processor sharing. This module computes that limit, from one completion to the next.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum

_ALMOST_NS = 1e-3  # the remainder below which a copy counts as done, because of rounding
_ROUNDING = 1e-15  # relative rounding error of a float64
_NEVER = float("inf")


class Lane(IntEnum):
    """The direction of a copy."""

    OUT = 0
    IN = 1


@dataclass(slots=True, eq=False)
class Copy:
    """One copy. `left_ns` is the time that the rest of the copy takes on a lane without other copies."""

    left_ns: float
    started_ns: float = _NEVER
    done_ns: float = _NEVER
    awaited: bool = False


@dataclass(slots=True)
class Flow:
    """The state of both lanes at the moment `now_ns`. Time only goes forward."""

    duplex: float
    now_ns: float = 0.0
    _queues: tuple[dict[int, deque[Copy]], dict[int, deque[Copy]]] = field(default_factory=lambda: ({}, {}))

    def queue(self, lane: Lane, job: int, duration_ns: int) -> Copy:
        """Add a copy behind the job's other copies on this lane, now."""
        copy = Copy(float(duration_ns))
        waiting = self._queues[lane].get(job)
        if waiting is None:
            self._queues[lane][job] = deque((copy,))
            copy.started_ns = self.now_ns
        else:
            waiting.append(copy)
        return copy

    def next_ns(self) -> float:
        """Return when the next copy completes if no copy is added; infinity if no copy is running."""
        earliest_ns = _NEVER
        outs, ins = self._queues
        for queues, other in ((outs, ins), (ins, outs)):
            if queues:
                least_ns = min(queue[0].left_ns for queue in queues.values())
                stretch = len(queues) / self.duplex if other else len(queues)
                earliest_ns = min(earliest_ns, self.now_ns + least_ns * stretch)
        return earliest_ns

    def advance(self, to_ns: float) -> list[Copy]:
        """Advance the time to `to_ns`. Returns the awaited copies that complete by then, in order of completion."""
        awaited: list[Copy] = []
        while (next_ns := self.next_ns()) <= to_ns:
            self._run(next_ns, awaited)
        self._run(to_ns, awaited)
        return awaited

    def _run(self, to_ns: float, awaited: list[Copy]) -> None:
        """Advance to a moment that is not after the next completion."""
        passed_ns, self.now_ns = to_ns - self.now_ns, to_ns
        outs, ins = self._queues
        both = bool(outs and ins)
        for queues in self._queues:
            if not queues:
                continue
            step_ns = passed_ns / len(queues)
            if both:
                step_ns *= self.duplex
            done = []
            for job, queue in queues.items():
                head = queue[0]
                head.left_ns -= step_ns
                if head.left_ns <= _ALMOST_NS + to_ns * _ROUNDING:
                    done.append(job)
            for job in done:
                self._finish(queues, job, awaited)

    def _finish(self, queues: dict[int, deque[Copy]], job: int, awaited: list[Copy]) -> None:
        queue = queues[job]
        copy = queue.popleft()
        copy.left_ns, copy.done_ns = 0.0, self.now_ns
        if copy.awaited:
            awaited.append(copy)
        if queue:
            queue[0].started_ns = self.now_ns
        else:
            del queues[job]
