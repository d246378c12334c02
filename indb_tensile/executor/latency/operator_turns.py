"""Times operators that take turns, so that each finds the caches of the processor as it does in a step.

An operator that runs again and again finds its inputs and its code in the caches. In a step, other operators run in
between. Measured on two cores, steps took 3 to 58 % longer than such times add up to, those of many short operators
the most. So operators run one after another in the order of the step, and then again. As many take turns as have
together the memory that the step has at its peak, because then as much lies between two runs of one operator as in
the step. With all operators of a step in turns, inputs that a step has just computed were too far away: a transformer
was foretold 6 % too long.

Tensors are in an arena, as in a step. Where they come from the system, first accesses to new pages are measured too.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from statistics import median
from time import perf_counter_ns

from indb_tensile.device.device import Clock
from indb_tensile.executor.capture.aten import entry_point
from indb_tensile.executor.capture.record import Call
from indb_tensile.executor.capture.step_capture import CapturedStep
from indb_tensile.executor.latency.calibration_site import serving
from indb_tensile.executor.latency.operator_inputs import OperatorInputs, gradient_mode
from indb_tensile.scheduler.graph import Stage
from indb_tensile.scheduler.memory.peak import liveness_peak

ROUNDS = 3  # of which the median counts; memory may be touched for the first time in the first one

Work = Sequence[tuple[CapturedStep, Call]]
TimedCall = tuple[Callable[[], AbstractContextManager[None]], Callable[[], None]]  # its context, and what runs in it


def time_in_turns(work: Work, workspace_bytes: Mapping[str, int], grant_bytes: int) -> dict[str, int]:
    """Return the nanoseconds of each call, by signature. All have run before, and none needs more than the grant.

    `workspace_bytes` has the memory of each call beside its inputs and results, by signature.
    """
    arena = serving()
    place: AbstractContextManager[None] = nullcontext() if arena is None else arena.on()
    times_ns: dict[str, int] = {}
    with place:
        for group in groups(work, workspace_bytes, grant_bytes):
            calls = [PreparedCall(step, call) for step, call in group]
            measured = alternate([(call.context, call.run) for call in calls])
            times_ns |= {call.signature: ns for (_, call), ns in zip(group, measured, strict=True)}
            del calls
    if arena is not None:
        arena.trim()
    return times_ns


class PreparedCall:
    """A call with inputs of its own, which runs as in its step."""

    def __init__(self, step: CapturedStep, call: Call) -> None:
        self._step = step
        self._call = call
        self._args, self._kwargs = OperatorInputs(step).arguments(call)
        self._target = entry_point(call.target)

    def context(self) -> AbstractContextManager[None]:
        """Return the context in which to run it."""
        return gradient_mode(self._step, self._call)

    def run(self) -> None:
        """Run it, and drop its results."""
        result = self._target(*self._args, **self._kwargs)
        if self._call.stage is Stage.UPLOAD:
            result.zero_()  # an upload also writes the bytes


def alternate(calls: Sequence[TimedCall], rounds: int = ROUNDS, clock: Clock = perf_counter_ns) -> list[int]:
    """Run all calls one after another, each in its context, and then again. Return the median time of each."""
    times_ns: list[list[int]] = [[] for _ in calls]
    for _ in range(rounds):
        for (context, run), own_ns in zip(calls, times_ns, strict=True):
            with context():
                start_ns = clock()
                run()
                own_ns.append(clock() - start_ns)
    return [int(median(own_ns)) for own_ns in times_ns]


def accessed_bytes(step: CapturedStep, call: Call) -> int:
    """Return the size of all tensors that the call reads or writes."""
    keys = {*call.reads, *call.writes}
    return sum(step.graph.tensors[step.tensor_of[key]].size_bytes for key in keys if key in step.tensor_of)


def groups(work: Work, workspace_bytes: Mapping[str, int], grant_bytes: int) -> Iterator[Work]:
    """Divide the calls into groups that take turns, each within the grant and within the peak of its steps."""
    most_bytes = {id(step): min(grant_bytes, liveness_peak(step.graph)) for step, _ in work}
    group: list[tuple[CapturedStep, Call]] = []
    accessed = workspace = 0
    for step, call in work:
        own, beside = accessed_bytes(step, call), workspace_bytes[call.signature]
        if group and accessed + own + max(workspace, beside) > most_bytes[id(step)]:
            yield group
            group, accessed, workspace = [], 0, 0
        group.append((step, call))
        accessed, workspace = accessed + own, max(workspace, beside)
    if group:
        yield group
