"""Lets rank 0 save checkpoints of the whole training, if the ranks divide the optimizer's state among them.

Only rank 0 knows when a checkpoint is due, because that depends on clocks and orders. So after each iteration rank 0
says one word to all others: either it goes on, or it wants the state that they keep and says the next word later.
Checkpoints have the names of a training on one device, so a job may go on with any number of devices.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from indb_tensile.executor.capture.storage_layout import Value
from indb_tensile.executor.ranks.rank_connection import while_ranks_answer
from indb_tensile.executor.ranks.rank_group import RankGroup

_GO_ON, _SEND = 0, 1  # words of rank 0


class StateGathering:
    """The checkpoints of ranks that divide the optimizer's state. Every method raises RankLostError.

    `divided` has the values of that state and the rank that keeps each. `export` returns a copy of a value of this
    rank. Each wait for other ranks runs in a context of `around`.
    """

    def __init__(
        self,
        group: RankGroup,
        divided: Sequence[tuple[Value, int]],
        export: Callable[[str], torch.Tensor],
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._group = group
        self._divided = divided
        self._export = export
        self._around = around

    @property
    def of_others(self) -> frozenset[str]:
        """The names of the values that other ranks keep."""
        return frozenset(value.name for value, owner in self._divided if owner != self._group.rank())

    def gather(self) -> Mapping[str, torch.Tensor]:
        """Return the values that other ranks keep, by name, on the host. Only rank 0 calls this."""
        with self._exchange():
            self._word(_SEND)
            return self._send_to_first()

    def end_turn(self) -> None:
        """Let all ranks go on. Other ranks send rank 0 their values first, as often as it gathers them.

        All ranks call this between the same iterations.
        """
        with self._exchange():
            if self._group.rank() == 0:
                self._word(_GO_ON)
            else:
                while self._word(_GO_ON) == _SEND:
                    self._send_to_first()

    def _word(self, word: int) -> int:
        """Return the word of rank 0; those of other ranks do not count."""
        said = torch.tensor(word)
        self._group.broadcast(said, 0).wait()
        return int(said)

    def _send_to_first(self) -> dict[str, torch.Tensor]:
        """Send rank 0 the values of this rank, and return what rank 0 receives."""
        own, ranks, received = self._group.rank(), self._group.size(), {}
        nothing = [0] * ranks
        for value, owner in self._divided:
            if owner == 0:
                continue
            like = torch.empty(value.shape if own == 0 else 0, dtype=value.dtype)
            sent = self._export(value.name).flatten() if owner == own else torch.empty(0, dtype=value.dtype)
            sends = [sent.numel(), *nothing[1:]]
            receives = [like.numel() if own == 0 and rank == owner else 0 for rank in range(ranks)]
            self._group.alltoall_base(like.view(-1), sent, receives, sends).wait()
            if own == 0:
                received[value.name] = like
        return received

    def _exchange(self) -> AbstractContextManager[None]:
        return while_ranks_answer(self._group, self._around)
