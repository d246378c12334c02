"""Foretells the exchanges of a step on several devices: their number, bytes, and how much of their time is hidden.

The figures are of rank 0. Its exchanges follow from the captured step. Their times are those of the operators that
wait for them: as measured while such a job trained, else without the network's time.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from indb_tensile.executor.capture.exchange_operator import STARTS, start_all_reduce_, start_sum_parts_
from indb_tensile.executor.capture.owner_operators import hand_out_, hand_out_numbers, start_sum_at_owners_
from indb_tensile.executor.capture.rank_share import RankShare
from indb_tensile.executor.capture.record import Call, refs
from indb_tensile.executor.capture.step_capture import CapturedStep
from indb_tensile.scheduler.timing.simulate import Forecast
from indb_tensile.sizes import size

_NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeOutline:
    """What one iteration of rank 0 exchanges.

    `sent_bytes` go to all other ranks together, without the headers of the network. `hidden_ns` of the exchanges'
    time `total_ns` run beside computation; `measured` says whether a job has measured that time.
    """

    share: RankShare
    count: int
    sent_bytes: int
    total_ns: int
    hidden_ns: int
    measured: bool

    @classmethod
    def of(
        cls,
        step: CapturedStep,
        latency_ns: Sequence[int],
        forecast: Forecast | None,
        share: RankShare,
        known: Iterable[str],
    ) -> "ExchangeOutline":
        """Return the outline of a training step. `known` are the signatures of operators that were measured.

        Without a `forecast`, as there is no plan, nothing is foretold to be hidden.
        """
        exchanges = [own.kernel for own in step.steps if own.kernel.target in STARTS or _waits_at_once(own.kernel)]
        waits = [
            (operator.signature, ns)
            for operator, ns in zip(step.graph.operators, latency_ns, strict=True)
            if operator.awaits is not None
        ]
        total_ns = sum(ns for _, ns in waits)
        late_ns = total_ns if forecast is None else forecast.exchange_ns
        return cls(
            share=share,
            count=len(exchanges),
            sent_bytes=sum(_sent_bytes(step, call, share.ranks) for call in exchanges),
            total_ns=total_ns,
            hidden_ns=max(0, total_ns - late_ns),
            measured={signature for signature, _ in waits} <= set(known),
        )

    @property
    def text(self) -> str:
        """The outline in words."""
        reduce = f'"reduce": "{self.share.reduce}"'
        sends = (
            f"each of {self.share.ranks} devices sends about {size(self.sent_bytes)} to the others in an iteration, "
            f"in {self.count} exchange{'s' if self.count != 1 else ''} ({reduce})"
        )
        if not self.measured:
            return f"{sends}, whose time on the network is not known before such a job has trained"
        hidden = f"{self.hidden_ns / _NS_PER_MS:.2f} of {self.total_ns / _NS_PER_MS:.2f} ms"
        return f"{sends}; {hidden} of the gradients' exchange are foretold to run beside computation"


def _waits_at_once(call: Call) -> bool:
    return call.target in (hand_out_, hand_out_numbers)


def _sent_bytes(step: CapturedStep, call: Call, ranks: int) -> int:
    """Return how much this exchange sends to all other ranks together."""
    if call.target is start_sum_parts_:
        bytes_of_part = _bytes(step, call.args[0])  # the parts' values for their sums, and the own sum to all others
        if ranks == 2:
            return bytes_of_part if call.kwargs["counts"][0] else 0  # the sum of its parts to the other one
        return _stretch(bytes_of_part, ranks) * int(call.kwargs["own"] + 1)
    if call.target is start_all_reduce_:
        return 2 * _stretch(_bytes(step, call.args[0]), ranks)
    owners = call.kwargs["owners"]
    if call.target is start_sum_at_owners_:
        rank, dtype = call.kwargs["rank"], call.kwargs["dtype"]
        others = sum(count for count, owner in zip(call.kwargs["sizes"], owners, strict=True) if owner != rank)
        return int(call.kwargs["counts"][rank] * others * dtype.itemsize)
    if call.target is hand_out_:
        mine = [value for value, owner in zip(call.args[0], owners, strict=True) if owner == call.kwargs["rank"]]
        return (ranks - 1) * _bytes(step, mine)
    return int((ranks - 1) * owners.count(call.kwargs["rank"]) * call.kwargs["dtype"].itemsize)


def _stretch(size_bytes: int, ranks: int) -> int:
    """Return the bytes of all stretches of a value but one."""
    return -(-size_bytes * (ranks - 1) // ranks)


def _bytes(step: CapturedStep, values: object) -> int:
    shapes = [step.values[ref.name] for ref in refs(values)]
    return sum(math.prod(shape.shape) * shape.dtype.itemsize for shape in shapes)
