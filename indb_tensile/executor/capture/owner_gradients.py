"""The gradients of one of several devices that divide the optimizer's state among them.

Each device gets the sums, over the parts of all devices, of the gradients that it updates with, and of no other ones
(part_gradients.py has the sum that every device gets). A bucket has about as many bytes
for each device, so that an exchange uses all connections at once. The new parameters are handed out in the same
buckets and order, each as soon as it is updated, beside the updates to come. So each device sends as much as if all
made all updates; one of two devices sends less if it has several parts (ranks/pair_exchange.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest

import torch

from indb_tensile.executor.capture.early_exchanges import LEAST_ROOM_BYTES, EarlyExchanges, PlannedExchange
from indb_tensile.executor.capture.exchange_room import handed_out_elements, owner_elements
from indb_tensile.executor.capture.owner_operators import (
    finish_hand_out_,
    finish_sum_at_owners_,
    hand_out_numbers,
    start_hand_out_,
    start_sum_at_owners_,
)
from indb_tensile.executor.capture.part_gradients import (
    BUCKET_BYTES,
    PartGradients,
    buckets,
    own_loss,
    refuse_complex,
)
from indb_tensile.executor.capture.rank_share import RankShare
from indb_tensile.executor.capture.record import Recorder
from indb_tensile.executor.capture.state_division import StateDivision
from indb_tensile.scheduler.graph import Stage

_aten = torch.ops.aten


class OwnerGradients(PartGradients):
    """What this device's parts of a batch have computed. `parts` is the number of parts of the whole batch."""

    def __init__(self, recorder: Recorder, share: RankShare, parts: int, state: StateDivision) -> None:
        super().__init__(recorder, share, parts)
        self._state = state

    def totals(
        self,
        exchanges: EarlyExchanges,
        names: Sequence[str],
        losses: list[torch.Tensor],
        loss_type: torch.dtype,
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Record the exchanges, after those planned before.

        Return the loss, and the gradients of the parameters whose state this rank keeps.
        """
        place = self._recorder.fake(names[0]).device
        loss = own_loss(exchanges, losses[:1], loss_type, place)
        owned = [name for name in names if self._state.owns(name)]
        # One of two ranks adds up its parts in place, also for the other one.
        firsts = self._firsts(exchanges, names if self._parts and len(self._counts) == 2 else owned)
        planned = [self._sum([loss], [losses[1:]])]
        planned += [
            self._sum_at_owners(bucket, firsts) for bucket in owner_buckets(self._recorder, names, self._state)
        ]
        exchanges.record(planned, place)
        # The host copies the loss right after the operator that makes it, so that is to be one after the exchange.
        total = exchanges.call(_aten.clone.default, loss, name="sum_loss")
        return total, {name: firsts[name] for name in owned}

    def _sum_at_owners(self, bucket: list[str], firsts: Mapping[str, torch.Tensor]) -> PlannedExchange:
        """Return the exchange of these parameters' gradients; `firsts` are the first part's that may be changed."""
        fakes = [self._recorder.fake(name) for name in bucket]
        for name, fake in zip(bucket, fakes, strict=True):
            refuse_complex(name, fake)
        owners, sizes = self._state.owners_of(bucket), [fake.numel() for fake in fakes]
        own = [
            firsts.get(name, self._own[name][part]) if part == 0 else self._own[name][part]
            for part in range(self._parts)
            for name in bucket
        ]
        elements = owner_elements(sizes, owners, self._counts, self._parts, self._state.rank)
        return PlannedExchange(
            start=start_sum_at_owners_,
            finish=finish_sum_at_owners_,
            values=[firsts[name] for name in bucket if self._state.owns(name)],
            others=(own,),
            numbers={
                "counts": list(self._counts),
                "owners": owners,
                "sizes": sizes,
                "rank": self._state.rank,
                "dtype": fakes[0].dtype,
            },
            room_bytes=elements * fakes[0].dtype.itemsize,
        )


def owner_buckets(recorder: Recorder, names: Sequence[str], state: StateDivision) -> list[list[str]]:
    """Return the names of parameters whose values make one exchange, the last ones in the model's order first.

    Values of a bucket are of one type, and of each owner about as many, in the model's order.
    """
    return [*_last_buckets_first(recorder, names, state)]


def _last_buckets_first(recorder: Recorder, names: Sequence[str], state: StateDivision) -> Iterator[list[str]]:
    values = {name: recorder.fake(name) for name in names}
    ranks = range(1 + max(state.owners.values()))
    for dtype in dict.fromkeys(value.dtype for value in values.values()):
        alike = {name: value for name, value in values.items() if value.dtype == dtype}
        backwards = {name: alike[name] for name in reversed(alike)}
        groups_of = [buckets(_of_owner(backwards, state, rank), BUCKET_BYTES) for rank in ranks]
        for groups in zip_longest(*groups_of, fillvalue=[]):
            chosen = {name for group in groups for name in group}
            yield [name for name in alike if name in chosen]


def _of_owner(values: Mapping[str, torch.Tensor], state: StateDivision, rank: int) -> dict[str, torch.Tensor]:
    return {name: value for name, value in values.items() if state.owners[name] == rank}


class OwnerExchanges:
    """The exchanges of an update that the ranks divide among them. `names` are all trained parameters, in order."""

    def __init__(self, recorder: Recorder, names: Sequence[str], state: StateDivision, ranks: int) -> None:
        self._recorder = recorder
        self._names = names
        self._state = state
        self._ranks = ranks

    def norms(self, own: list[torch.Tensor]) -> torch.Tensor:
        """Record that each rank gives all others the norms of its gradients. Return those of all, in order."""
        first = self._recorder.fake(self._names[0])
        norms: torch.Tensor = self._recorder.call(
            Stage.OPTIMIZER,
            hand_out_numbers,
            own,
            owners=self._state.owners_of(self._names),
            ranks=self._ranks,
            rank=self._state.rank,
            dtype=first.dtype,
            device=first.device,
            name="norms_of_all",
        )
        return norms

    def hand_out(self) -> None:
        """Record that each rank gives all others the parameters that it has updated."""
        chosen = owner_buckets(self._recorder, self._names, self._state)
        exchanges = [[self._recorder.fake(name) for name in bucket] for bucket in chosen]
        owners = [self._state.owners_of(bucket) for bucket in chosen]
        room_bytes = max(
            handed_out_elements([value.numel() for value in values], of, self._ranks) * values[0].dtype.itemsize
            for values, of in zip(exchanges, owners, strict=True)
        )
        room = self._recorder.call(
            Stage.OPTIMIZER,
            _aten.empty.memory_format,
            [max(LEAST_ROOM_BYTES, room_bytes)],
            dtype=torch.uint8,
            device=exchanges[0][0].device,
            name="hand_out_room",
        )
        for target in (start_hand_out_, finish_hand_out_):
            for values, of in zip(exchanges, owners, strict=True):
                self._recorder.call(
                    Stage.OPTIMIZER, target, values, room, owners=of, ranks=self._ranks, rank=self._state.rank
                )
