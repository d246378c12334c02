"""Records the exchanges of a step so that each starts as early as it can, and ends after all have started.

The gradients of the last layers are there first, and their exchange then runs beside the backward pass of the other
layers, as in Li and others, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (VLDB 2020),
section 3.2.3. What is exchanged together, and in which order, follows from the parameters alone. So all ranks start
the same exchanges in the same order, also one that has no part of the batch, and none waits for an exchange that
another rank has not reached because it makes a later one first.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from indb_tensile.executor.capture.exchange_operator import STARTS
from indb_tensile.executor.capture.record import Call, Recorder, StorageKey
from indb_tensile.scheduler.graph import Role, Stage

_aten = torch.ops.aten
LEAST_ROOM_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedExchange:
    """The operators of one exchange, and their arguments around the room, which all exchanges share."""

    start: Any
    finish: Any
    values: list[torch.Tensor]
    others: tuple[list[torch.Tensor], ...] = ()
    numbers: dict[str, Any] = field(default_factory=dict)
    room_bytes: int = 0


class EarlyExchanges:
    """Records exchanges after the rest of a step's forward and backward pass has been recorded."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._first = len(recorder.calls)
        self._planned: list[PlannedExchange] = []

    def own(self, values: Sequence[torch.Tensor], among: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the values for an exchange to change in place: copies of those whose storage has anything else.

        That is another of the tensors `among`, or what is not made by this step's operators.
        """
        holders = Counter(self._recorder.key_of(tensor) for tensor in among)
        return [
            value if self._is_alone(value, holders) else self.call(_aten.clone.default, value) for value in values
        ]

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Any:
        """Record a call of the backward pass."""
        return self._recorder.call(Stage.BACKWARD, target, *args, **kwargs)

    def empty(self, like: torch.Tensor) -> torch.Tensor:
        """Record a value of this shape and memory order, with any numbers in it."""
        kind: dict[str, Any] = {"dtype": like.dtype, "device": like.device}
        made: torch.Tensor = self.call(_aten.empty_strided.default, list(like.shape), list(like.stride()), **kind)
        return made

    def plan(self, exchange: PlannedExchange) -> None:
        """Let `record` record this exchange before those that it is given."""
        self._planned.append(exchange)

    def record(self, exchanges: Sequence[PlannedExchange], device: torch.device) -> None:
        """Record all exchanges, in this order. After that their values are the exchanged ones."""
        exchanges = [*self._planned, *exchanges]
        room_bytes = max([LEAST_ROOM_BYTES, *(exchange.room_bytes for exchange in exchanges)])
        room = self.call(
            _aten.empty.memory_format, [room_bytes], dtype=torch.uint8, device=device, name="exchange_room"
        )
        for exchange in exchanges:
            self.call(exchange.start, exchange.values, *exchange.others, room, **exchange.numbers)
        _hoist(self._recorder.calls, self._first)
        for exchange in exchanges:
            self.call(exchange.finish, exchange.values, *exchange.others, room, **exchange.numbers)

    def _is_alone(self, value: torch.Tensor, holders: Counter[StorageKey]) -> bool:
        key = self._recorder.key_of(value)
        return holders[key] == 1 and self._recorder.storages[key].role is Role.ACTIVATION


def _hoist(calls: list[Call], first: int) -> None:
    """Move each of the calls from `first` on to the earliest place in the backward pass at which it may run."""
    earlier, moved = calls[:first], calls[first:]
    at: dict[int, list[Call]] = {}
    for call, place in zip(moved, _places(earlier, moved), strict=True):
        at.setdefault(place, []).append(call)
    calls.clear()
    for place in range(first + 1):
        calls += at.get(place, ())
        calls += earlier[place : place + 1]


def _places(earlier: Sequence[Call], moved: Sequence[Call]) -> list[int]:
    """Return how many of the earlier calls each moved call has to come after.

    A call comes after what it reads has been made, and after every other access to what it changes. Exchanges keep
    their order. A call that reads nothing comes right before the first one that reads its result.
    """
    backward = next((k for k, call in enumerate(earlier) if call.stage is Stage.BACKWARD), len(earlier))
    written: dict[StorageKey, int] = {}
    accessed: dict[StorageKey, int] = {}
    made: dict[str, int] = {}
    started = backward

    def note(call: Call, place: int) -> None:
        for key in () if call.view else call.writes:
            written[key] = max(place, written.get(key, 0))
        for key in (*call.reads, *call.writes):
            accessed[key] = max(place, accessed.get(key, 0))
        made.update(dict.fromkeys(call.makes, place))

    for k, call in enumerate(earlier):
        note(call, k + 1)
    places = []
    for call in moved:
        after = [backward, *(written.get(key, 0) for key in call.reads), *(made.get(n, 0) for n in call.arguments)]
        after += [accessed.get(key, 0) for key in call.writes]
        place = max([*after, started] if call.target in STARTS else after)
        started = place if call.target in STARTS else started
        places.append(place)
        note(call, place)
    for k, call in enumerate(moved):
        if not call.reads:
            users = [places[n] for n in range(k + 1, len(moved)) if set(call.writes).intersection(moved[n].reads)]
            places[k] = min(users, default=places[k])
    return places
