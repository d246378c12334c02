"""What ranks compute between the exchanges that they rehearse: the operators of their step, as far as memory allows.

An exchange that runs beside operators, and between them, takes what they need from the caches and the processor. So
operators run here with inputs of their own, made from their metadata. Those for which there is no memory, and those
that fail on such inputs, are replaced by products of small matrices, as many as take their time.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from time import perf_counter_ns

import torch

from indb_tensile.errors import InvariantError
from indb_tensile.executor.capture.record import Call
from indb_tensile.executor.capture.step_capture import CapturedStep
from indb_tensile.executor.latency.operator_turns import PreparedCall, accessed_bytes
from indb_tensile.scheduler.graph import Operator

_SIDE = 96  # a product of two such matrices takes as long as a short operator
_TIMED_PRODUCTS = 64


class Products:
    """Products of small matrices, which stand for operators."""

    def __init__(self) -> None:
        self._factor = torch.full((_SIDE, _SIDE), 0.5)
        self._product = torch.empty(_SIDE, _SIDE)
        self.one_ns = self._time_ns()

    def run(self, count: int) -> None:
        """Compute so many products."""
        for _ in range(count):
            torch.mm(self._factor, self._factor, out=self._product)

    def _time_ns(self) -> int:
        times_ns = []
        for _ in range(_TIMED_PRODUCTS):
            began_ns = perf_counter_ns()
            self.run(1)
            times_ns.append(perf_counter_ns() - began_ns)
        return max(1, round(median(times_ns)))


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRun:
    """The operators between two exchanges. Those without memory take `replaced_ns` together."""

    calls: Sequence[PreparedCall]
    replaced_ns: int

    def run(self, products: Products) -> None:
        """Run the operators in order, and products in place of those without memory."""
        for call in self.calls:
            with call.context():
                call.run()
        products.run(round(self.replaced_ns / products.one_ns))


class RehearsedOperators:
    """Prepares the operators of one step, each signature once, within `room_bytes`."""

    def __init__(self, step: CapturedStep, room_bytes: int) -> None:
        self._step = step
        self._left_bytes = room_bytes
        self._prepared: dict[str, PreparedCall | None] = {}

    def computation(self, work: Sequence[tuple[Operator, Call, int]]) -> OperatorRun:
        """Return these operators, of which each has its call and its time in nanoseconds."""
        calls, replaced_ns = [], 0
        for operator, call, ns in work:
            prepared = self._prepare(operator, call)
            if prepared is None:
                replaced_ns += ns
            else:
                calls.append(prepared)
        return OperatorRun(calls=tuple(calls), replaced_ns=replaced_ns)

    def _prepare(self, operator: Operator, call: Call) -> PreparedCall | None:
        if call.signature not in self._prepared:
            self._prepared[call.signature] = self._try(operator, call)
        return self._prepared[call.signature]

    def _try(self, operator: Operator, call: Call) -> PreparedCall | None:
        """Return the call if it has memory and runs on inputs that are made from its metadata."""
        needed_bytes = accessed_bytes(self._step, call) + operator.workspace_bytes
        if needed_bytes > self._left_bytes:
            return None
        with suppress(RuntimeError, MemoryError, InvariantError):
            prepared = PreparedCall(self._step, call)
            with prepared.context():
                prepared.run()
            self._left_bytes -= needed_bytes
            return prepared
        return None
