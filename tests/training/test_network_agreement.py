"""Check that ranks agree on the network by which they exchange gradients."""

from collections.abc import Sequence

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from indb_tensile.errors import DeviceError, TensileError
from indb_tensile.executor.capture.rank_share import RankShare
from worker.training.network_agreement import settle_network

HOST = torch.device("cpu")


def settle(networks: Sequence[str], place: torch.device = HOST) -> list[object]:
    """Settle the network for ranks with these settings, one after another, and return what each one gets."""
    store = HashStore()

    def of_rank(rank: int, own: str) -> object:
        return settle_network(store, RankShare(rank=rank, ranks=len(networks)), own, place, store.get)

    return [of_rank(rank, own) for rank, own in enumerate(networks)]


def test_ranks_exchange_in_host_memory_if_all_are_set_to_it() -> None:
    assert settle(["host"] * 3) == [None] * 3


def test_rank_with_another_setting_than_rank_0_names_both() -> None:
    with pytest.raises(TensileError, match="rank_network is nccl for rank 1 of 2, and host for rank 0") as caught:
        settle(["host", "nccl"])
    assert caught.value.hint == "Give all controllers the same rank_network (TENSILE_RANK_NETWORK)."


def test_rank_without_a_gpu_cannot_exchange_by_nccl() -> None:
    with pytest.raises(DeviceError, match="rank_network is nccl, and this device is not a GPU but cpu"):
        settle(["nccl", "nccl"])
