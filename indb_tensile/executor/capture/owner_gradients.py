"""The gradients of one of several devices that divide the optimizer's state among them.

After the backward pass each device gets the sums, over the parts of all devices, of the gradients that it updates
with, and of no other ones (part_gradients.py has the sum that every device gets). A bucket has about as many bytes
for each device, so that an exchange uses all connections at once. After the updates the new parameters are handed out
in the same buckets. So each device sends as much as if all made all updates.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest

import torch

from indb_tensile.executor.capture.owner_operators import hand_out_, hand_out_numbers, sum_at_owners
from indb_tensile.executor.capture.part_gradients import BUCKET_BYTES, PartGradients, buckets, refuse_complex
from indb_tensile.executor.capture.rank_share import RankShare
from indb_tensile.executor.capture.record import Recorder
from indb_tensile.executor.capture.state_division import StateDivision
from indb_tensile.scheduler.graph import Stage


class OwnerGradients(PartGradients):
    """What this device's parts of a batch have computed. `parts` is the number of parts of the whole batch."""

    def __init__(self, recorder: Recorder, share: RankShare, parts: int, state: StateDivision) -> None:
        super().__init__(recorder, share, parts)
        self._state = state

    def totals(
        self, names: Sequence[str], losses: list[torch.Tensor], loss_type: torch.dtype
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Record the exchanges. Return the loss, and the gradients of the parameters whose state this rank keeps."""
        loss, _ = super().totals((), losses, loss_type)
        totals: dict[str, torch.Tensor] = {}
        for number, bucket in enumerate(owner_buckets(self._recorder, names, self._state)):
            totals |= self._sums_at_owners(bucket, f"sum_at_owners_{number}")
        return loss, {name: totals[name] for name in names if self._state.owns(name)}

    def _sums_at_owners(self, bucket: list[str], name: str) -> dict[str, torch.Tensor]:
        owned = [parameter for parameter in bucket if self._state.owns(parameter)]
        of_each = [self._own.get(parameter, []) for parameter in bucket]
        own = [gradient for part in zip(*of_each, strict=True) for gradient in part]
        owners, lengths = self._state.owners_of(bucket), [0] * len(self._counts)
        for parameter, owner in zip(bucket, owners, strict=True):
            fake = self._recorder.fake(parameter)
            refuse_complex(parameter, fake)
            lengths[owner] += fake.numel()
        sums = self._recorder.call(
            Stage.BACKWARD,
            sum_at_owners,
            [self._recorder.fake(parameter) for parameter in owned],
            own,
            counts=list(self._counts),
            owners=owners,
            lengths=lengths,
            rank=self._state.rank,
            name=name,
        )
        return dict(zip(owned, sums, strict=True))


def owner_buckets(recorder: Recorder, names: Sequence[str], state: StateDivision) -> Iterator[list[str]]:
    """Yield the names of parameters whose values make one exchange: of one type, and of each owner about as many."""
    values = {name: recorder.fake(name) for name in names}
    ranks = range(1 + max(state.owners.values()))
    for dtype in dict.fromkeys(value.dtype for value in values.values()):
        alike = {name: value for name, value in values.items() if value.dtype == dtype}
        of_rank = [_of_owner(alike, state, rank) for rank in ranks]
        for groups in zip_longest(*(buckets(own, BUCKET_BYTES) if own else () for own in of_rank), fillvalue=[]):
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
        for bucket in owner_buckets(self._recorder, self._names, self._state):
            values = [self._recorder.fake(name) for name in bucket]
            owners = self._state.owners_of(bucket)
            self._recorder.call(
                Stage.OPTIMIZER, hand_out_, values, owners=owners, ranks=self._ranks, rank=self._state.rank
            )
