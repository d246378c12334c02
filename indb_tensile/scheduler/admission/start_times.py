"""How long jobs of each kind take before their first step and after their last one, from what they have shown here.

A trainer measures both: from the order to start until its first step has ended, and from the end of its training
until its version is published. A job that starts up or closes has its memory and computes nothing, and foretold
schedules (completion/foretell.py) count it so.

A time beside other jobs is longer than alone, because processors are shared. So a shorter time counts at once, and
a longer one a little. Of a job whose kind has not been measured, the times are those of the known kind with the
nearest size of the state: creating the state and copying it to the device is what takes long. Until any job has been
measured, all times are 0.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.graph import StepGraph

_LONGER_WEIGHT = 0.25  # of a time that is longer than the known one
_MOST_KINDS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class KindTimes:
    """What jobs of one kind take. None: not measured yet. `state_bytes` is the size of their state."""

    kind: str
    state_bytes: int
    startup_ns: float | None = None
    closing_ns: float | None = None

    def __post_init__(self) -> None:
        for ns in (self.startup_ns, self.closing_ns):
            if ns is not None and not 0 <= ns < float("inf"):
                raise InvariantError(f"jobs of the kind {self.kind} take {ns} ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTimes:
    """The times of all kinds that were measured, the latest last."""

    kinds: tuple[KindTimes, ...] = ()

    def startup_ns(self, kind: str, state_bytes: int) -> float:
        """Return the time from the order to start until the first step begins, of a job of this kind and size."""
        return self._known(kind, state_bytes, lambda times: times.startup_ns)

    def closing_ns(self, kind: str, state_bytes: int) -> float:
        """Return the time from the end of the training until the version is published."""
        return self._known(kind, state_bytes, lambda times: times.closing_ns)

    def started(self, kind: str, state_bytes: int, took_ns: float) -> "StartTimes":
        """Return the times after a job of this kind has started up for so long."""
        times = self._of(kind, state_bytes)
        return self._with(replace(times, startup_ns=_mean(times.startup_ns, took_ns)))

    def closed(self, kind: str, state_bytes: int, took_ns: float) -> "StartTimes":
        """Return the times after a job of this kind has closed for so long."""
        times = self._of(kind, state_bytes)
        return self._with(replace(times, closing_ns=_mean(times.closing_ns, took_ns)))

    def _known(self, kind: str, state_bytes: int, measure: Callable[[KindTimes], float | None]) -> float:
        known = [(times, ns) for times in self.kinds if (ns := measure(times)) is not None]
        _, took_ns = min(
            known,
            key=lambda row: (row[0].kind != kind, abs(row[0].state_bytes - state_bytes), row[0].kind),
            default=(None, 0.0),
        )
        return took_ns

    def _of(self, kind: str, state_bytes: int) -> KindTimes:
        known = (times for times in self.kinds if times.kind == kind)
        return next(known, KindTimes(kind=kind, state_bytes=state_bytes))

    def _with(self, times: KindTimes) -> "StartTimes":
        others = tuple(known for known in self.kinds if known.kind != times.kind)
        return StartTimes(kinds=(*others, times)[-_MOST_KINDS:])


def state_bytes(graph: StepGraph) -> int:
    """Return the size of the state: of what lives across iterations."""
    return sum(tensor.size_bytes for tensor in graph.tensors if tensor.persistent)


def _mean(known_ns: float | None, took_ns: float) -> float:
    if known_ns is None or took_ns < known_ns:
        return took_ns
    return known_ns + _LONGER_WEIGHT * (took_ns - known_ns)
