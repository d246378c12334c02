"""How copies move through two shared lanes: each job's in its own order, the jobs side by side.

A job's copies in one direction run one after the other. Copies of several jobs in the same direction share the
lane equally, as the device's lanes do when they take turns chunk by chunk: served whole and in the order of
request, a small copy would wait for every large one before it. In the limit of small chunks that is processor
sharing, and the limit is what is computed here, from one completion to the next.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum

_ALMOST_NS = 1e-3  # what rounding may leave of a copy that is done
_ROUNDING = 1e-15  # of a float64
_NEVER = float("inf")


class Lane(IntEnum):
    """Which way a copy goes."""

    OUT = 0
    IN = 1


@dataclass(slots=True, eq=False)
class Copy:
    """One copy: `left_ns` is what is left of it on a lane of its own."""

    left_ns: float
    started_ns: float = _NEVER
    done_ns: float = _NEVER
    awaited: bool = False


@dataclass(slots=True)
class Flow:
    """Both lanes at one moment, `now_ns`. Time only goes forward."""

    duplex: float
    now_ns: float = 0.0
    _queues: tuple[dict[int, deque[Copy]], dict[int, deque[Copy]]] = field(default_factory=lambda: ({}, {}))

    def queue(self, lane: Lane, job: int, duration_ns: int) -> Copy:
        """Add a copy behind the job's others, now."""
        copy = Copy(float(duration_ns))
        waiting = self._queues[lane].get(job)
        if waiting is None:
            self._queues[lane][job] = deque((copy,))
            copy.started_ns = self.now_ns
        else:
            waiting.append(copy)
        return copy

    def next_ns(self) -> float:
        """When the next copy is done, if none is added; infinite where none runs."""
        found = _NEVER
        outs, ins = self._queues
        for queues, other in ((outs, ins), (ins, outs)):
            if queues:
                least_ns = min(queue[0].left_ns for queue in queues.values())
                stretch = len(queues) / self.duplex if other else len(queues)
                found = min(found, self.now_ns + least_ns * stretch)
        return found

    def advance(self, to_ns: float) -> list[Copy]:
        """Let time pass. Returns the awaited copies that are done by then, in the order of their ends."""
        awaited: list[Copy] = []
        while (next_ns := self.next_ns()) <= to_ns:
            self._run(next_ns, awaited)
        self._run(to_ns, awaited)
        return awaited

    def _run(self, to_ns: float, awaited: list[Copy]) -> None:
        """Go to a moment that is not after the next completion."""
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
