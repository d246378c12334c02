"""The kinds of connection between ranks, for tests that have to hold for each of them.

- `GLOO` exchanges host memory.
- `NCCL` exchanges the memory of GPUs, one for each rank. It is left out where there is no NCCL, or too few GPUs.
- `DOUBLE` is NCCL's connection with Gloo in place of NCCL: host memory stands for that of the devices.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import pytest
import torch
from _pytest.mark.structures import ParameterSet
from torch._C._distributed_c10d import ErrorType, Store

from indb_tensile.executor.capture.rank_share import RankShare
from indb_tensile.executor.ranks.nccl_connection import connect_by_nccl
from indb_tensile.executor.ranks.nccl_ranks import ControlGroup, NcclRanks, leaving
from indb_tensile.executor.ranks.rank_connection import LOOPBACK, join_ranks
from indb_tensile.executor.ranks.rank_gpu import TorchGpu
from indb_tensile.executor.ranks.rank_group import RankGroup

HOST = torch.device("cpu")
MEETING_S = 60.0


@dataclass(frozen=True, slots=True)
class Reached:
    """A mark that the device has reached."""

    def query(self) -> bool:
        """Return True."""
        return True


@dataclass(frozen=True, slots=True)
class GroupKind:
    """A kind of connection. `place` is where a rank has its values."""

    name: str
    place: Callable[[int], torch.device]
    connect: Callable[[RankGroup, Store, RankShare, float], RankGroup]

    @contextmanager
    def joined(self, store: Store, share: RankShare, timeout_s: float) -> Iterator[RankGroup]:
        """Connect this rank to all others, in a thread or process of its own."""
        group = join_ranks(store, share, attempt="1", meeting_s=MEETING_S, timeout_s=timeout_s)
        connected = self.connect(group, store, share, timeout_s)
        with leaving(connected):
            yield connected


class GlooCollectives:
    """Gloo in place of NCCL. `abort` ends nothing by itself: the connection of Gloo ends with that of control."""

    def __init__(self, group: RankGroup) -> None:
        self._group = group
        self.alltoall_base = group.alltoall_base
        self.broadcast = group.broadcast
        self.allreduce = group.allreduce
        self.aborted = 0

    def get_error(self) -> ErrorType:
        """Gloo raises its errors where its operations are waited for."""
        return ErrorType.SUCCESS

    def abort(self) -> None:
        """Count the calls."""
        self.aborted += 1


def over_gloo(group: RankGroup, timeout_s: float = MEETING_S, **options: Any) -> NcclRanks:
    """Return NCCL's connection of ranks with Gloo in place of NCCL."""
    control, options = cast(ControlGroup, group), {"mark": Reached} | options
    return NcclRanks(control, GlooCollectives(group), HOST, timeout_s=timeout_s, **options)


def _over_nccl(group: RankGroup, store: Store, share: RankShare, timeout_s: float) -> RankGroup:
    gpu = TorchGpu(torch.device("cuda", share.rank))
    gpu.use()
    connected, taken_bytes = connect_by_nccl(
        group,
        store,
        share,
        gpu,
        attempt="1",
        meeting_s=MEETING_S,
        timeout_s=timeout_s,
        address=LOOPBACK,
    )
    assert taken_bytes > 0
    return connected


GLOO = GroupKind("gloo", lambda rank: HOST, lambda group, *_: group)
DOUBLE = GroupKind("double", lambda rank: HOST, lambda group, _, __, timeout_s: over_gloo(group, timeout_s))
NCCL = GroupKind("nccl", lambda rank: torch.device("cuda", rank), _over_nccl)


HOST_KINDS = [pytest.param(kind, id=kind.name) for kind in (GLOO, DOUBLE)]
# For whole trainings: by day the exchanges alone are tested by all kinds (test_group_kinds.py).
TRAINING_KINDS = [HOST_KINDS[0], pytest.param(DOUBLE, id=DOUBLE.name, marks=pytest.mark.nightly)]


def missing_for_nccl(ranks: int) -> str:
    """Return why so many ranks cannot be connected by NCCL here; empty if they can."""
    if not torch.distributed.is_nccl_available():
        return f"PyTorch {torch.__version__} was built without NCCL"
    if (gpus := torch.cuda.device_count()) < ranks:
        return f"NCCL needs a GPU for each of {ranks} ranks, and there are {gpus}"
    return ""


def group_kinds(ranks: int) -> list[ParameterSet]:
    """Return the kinds as parameters of a test of at most so many ranks."""
    reason = missing_for_nccl(ranks)
    without_nccl = pytest.mark.skipif(bool(reason), reason=reason)
    return [*HOST_KINDS, pytest.param(NCCL, id=NCCL.name, marks=without_nccl)]
