"""Checks that all ranks of a job exchange gradients by the same network, and by NCCL only between different GPUs."""

from collections.abc import Callable
from socket import gethostname

import torch
from torch._C._distributed_c10d import Store

from indb_tensile.config import variable
from indb_tensile.errors import TensileError
from indb_tensile.executor.capture.rank_share import RankShare
from indb_tensile.executor.ranks.nccl_connection import refuse_shared_gpus, refuse_without_nccl
from indb_tensile.executor.ranks.rank_gpu import RankGpu, TorchGpu, gpu_of


def settle_network(
    store: Store, share: RankShare, own: str, place: torch.device, await_value: Callable[[str], bytes]
) -> RankGpu | None:
    """Return the GPU of this rank if all ranks exchange by NCCL, and None if they all exchange in host memory.

    `own` is the setting `rank_network` of this rank, and `place` the device of its gradients. Raises TensileError if
    rank 0 has another setting, and DeviceError if this rank cannot exchange by NCCL. Rank 0 learns of that by the end
    of the attempt.
    """
    store.set(_network_of(share.rank), own)
    first = await_value(_network_of(0)).decode()
    if own != first:
        raise TensileError(
            f"rank_network is {own} for rank {share.rank} of {share.ranks}, and {first} for rank 0",
            detail="All ranks of a job exchange gradients by one network.",
            hint=f"Give all controllers the same rank_network ({variable('rank_network')}).",
        )
    if own != "nccl":
        return None
    refuse_without_nccl(place)
    store.set(_gpu_of(share.rank), gpu_of(place, gethostname()))
    refuse_shared_gpus([await_value(_gpu_of(rank)).decode() for rank in range(share.ranks)])
    return TorchGpu(place)


def _network_of(rank: int) -> str:
    return f"network of {rank}"


def _gpu_of(rank: int) -> str:
    return f"GPU of {rank}"
