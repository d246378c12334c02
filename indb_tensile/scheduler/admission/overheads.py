"""What jobs of each kind take besides their iterations, and how early they stop, from what they have shown here.

Trainers measure three times: from the order to start until the first step has ended; of a step, what lies between its
iteration and the next one (the loop, the batch, the evaluation, reports and checkpoints); and from the end of the
training until the version is published. A job that starts up or closes has its memory and computes nothing, and
foretold schedules (completion/foretell.py) count it so. What lies between iterations is part of a step.

A start beside other jobs takes longer than alone, because processors are shared. So a shorter time of starting up or
closing counts at once, and a longer one a little. What lies between iterations is measured as a time alone, so both
count equally. Of a job whose kind has not been measured, the times are those of the known kind with the nearest size
of the state: creating the state and copying it to the device is what takes long. Until any job has been measured, all
times are 0. Until one has closed, closing is taken to be as long as starting up. The catalog keeps the times, so a
controller that starts anew knows them (catalog/device_overheads.py).

The number of steps that a trainer foretells is a bound: a training whose figures get no better stops early. Three of
four small trainings of `tensile bench share` stop after a quarter to two fifths of their steps. So the share of the
steps that jobs of a kind have trained is remembered too. A kind without one is taken to train all steps.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.graph import StepGraph

_LONGER_WEIGHT = 0.25  # of a time that is longer than the known one
_WEIGHT = 0.5
_LONGER_SHARE = 0.25  # of the usual steps: those still to come of a job that has trained the usual ones
MOST_KINDS = 64
_NOISE = 0.1  # a time that changed by less than this part of it has not changed


@dataclass(frozen=True, slots=True, kw_only=True)
class KindOverheads:
    """What jobs of one kind take besides their iterations. None: not measured yet.

    `state_bytes` is the size of their state. `between_ns` is a step's time without its iteration. `trained_share` is
    the part of its steps that a job trains before it stops early.
    """

    kind: str
    state_bytes: int
    startup_ns: float | None = None
    between_ns: float | None = None
    closing_ns: float | None = None
    trained_share: float | None = None

    def __post_init__(self) -> None:
        for ns in (self.startup_ns, self.between_ns, self.closing_ns):
            if ns is not None and not 0 <= ns < float("inf"):
                raise InvariantError(f"jobs of the kind {self.kind} take {ns} ns")
        if self.trained_share is not None and not 0 < self.trained_share <= 1:
            raise InvariantError(f"jobs of the kind {self.kind} train {self.trained_share} of their steps")


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """The overheads of all kinds that were measured, the latest last."""

    kinds: tuple[KindOverheads, ...] = ()

    def startup_ns(self, kind: str, state_bytes: int) -> float:
        """Return the time from the order to start until the first step begins, of a job of this kind and size."""
        return self._known(kind, state_bytes, lambda times: times.startup_ns)

    def between_ns(self, kind: str, state_bytes: int) -> float:
        """Return the time of a step without its iteration, alone on the device."""
        return self._known(kind, state_bytes, lambda times: times.between_ns)

    def closing_ns(self, kind: str, state_bytes: int) -> float:
        """Return the time from the end of the training until the version is published.

        Until the first job has closed, it is the time of starting up: both move the state once.
        """
        if all(times.closing_ns is None for times in self.kinds):
            return self.startup_ns(kind, state_bytes)
        return self._known(kind, state_bytes, lambda times: times.closing_ns)

    def trained_share(self, kind: str) -> float:
        """Return the share of its steps that a job of this kind trains: 1 if that is not known."""
        return next((times.trained_share for times in self.kinds if times.kind == kind and times.trained_share), 1.0)

    def started(self, kind: str, state_bytes: int, took_ns: float) -> "Overheads":
        """Return the times after a job of this kind has started up for so long."""
        times = self._of(kind, state_bytes)
        return self._with(replace(times, startup_ns=_mean(times.startup_ns, took_ns)))

    def stepped(self, kind: str, state_bytes: int, took_ns: float) -> "Overheads":
        """Return the times after the steps of a job of this kind took so long without their iterations."""
        times = self._of(kind, state_bytes)
        return self._with(
            replace(times, between_ns=_mean(times.between_ns, took_ns, longer=_WEIGHT, shorter=_WEIGHT))
        )

    def closed(self, kind: str, state_bytes: int, took_ns: float) -> "Overheads":
        """Return the times after a job of this kind has closed for so long."""
        times = self._of(kind, state_bytes)
        return self._with(replace(times, closing_ns=_mean(times.closing_ns, took_ns)))

    def ended(self, kind: str, state_bytes: int, trained_share: float) -> "Overheads":
        """Return the times after a job of this kind has trained this share of its steps."""
        times = self._of(kind, state_bytes)
        share = _mean(times.trained_share, trained_share, longer=_WEIGHT, shorter=_WEIGHT)
        return self._with(replace(times, trained_share=share))

    def changed_since(self, earlier: "Overheads") -> tuple[KindOverheads, ...]:
        """Return the kinds that were not known then, or whose times have changed by more than noise."""
        known = {times.kind: times for times in earlier.kinds}
        return tuple(times for times in self.kinds if _differ(known.get(times.kind), times))

    def _known(self, kind: str, state_bytes: int, measure: Callable[[KindOverheads], float | None]) -> float:
        known = [(times, ns) for times in self.kinds if (ns := measure(times)) is not None]
        _, took_ns = min(
            known,
            key=lambda row: (row[0].kind != kind, abs(row[0].state_bytes - state_bytes), row[0].kind),
            default=(None, 0.0),
        )
        return took_ns

    def _of(self, kind: str, state_bytes: int) -> KindOverheads:
        known = (times for times in self.kinds if times.kind == kind)
        return next(known, KindOverheads(kind=kind, state_bytes=state_bytes))

    def _with(self, times: KindOverheads) -> "Overheads":
        others = tuple(known for known in self.kinds if known.kind != times.kind)
        return Overheads(kinds=(*others, times)[-MOST_KINDS:])


def expected_steps_left(steps: float, steps_left: float, trained_share: float) -> float:
    """Return how many of the steps that are left of a job will be trained, if its kind trains this share of all.

    A job that has trained more than that is expected to train a quarter as much again, and never more than is left.
    """
    usual = trained_share * steps
    return min(steps_left, max(usual - (steps - steps_left), _LONGER_SHARE * usual))


def state_bytes(graph: StepGraph) -> int:
    """Return the size of the state: of what lives across iterations."""
    return sum(tensor.size_bytes for tensor in graph.tensors if tensor.persistent)


def _differ(earlier: KindOverheads | None, times: KindOverheads) -> bool:
    if earlier is None:
        return True
    pairs = (
        (earlier.startup_ns, times.startup_ns),
        (earlier.between_ns, times.between_ns),
        (earlier.closing_ns, times.closing_ns),
        (earlier.trained_share, times.trained_share),
    )
    return any(now is not None and (then is None or abs(now - then) > _NOISE * then) for then, now in pairs)


def _mean(known_ns: float | None, took_ns: float, *, longer: float = _LONGER_WEIGHT, shorter: float = 1.0) -> float:
    """Return the mean of the known and the latest time. The latter has one of two weights."""
    if known_ns is None:
        return took_ns
    weight = longer if took_ns > known_ns else shorter
    return (1 - weight) * known_ns + weight * took_ns
