"""Check how ranks connect by NCCL, with doubles of their GPUs and Gloo in place of NCCL."""

import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._C._distributed_c10d import HashStore, Store

from indb_tensile.errors import DeviceError, RankLostError
from indb_tensile.executor.capture.rank_share import RankShare
from indb_tensile.executor.ranks.nccl_connection import (
    await_room,
    connect_by_nccl,
    refuse_shared_gpus,
    refuse_without_nccl,
)
from indb_tensile.executor.ranks.nccl_ranks import Collectives
from indb_tensile.executor.ranks.network_interfaces import interface_of
from indb_tensile.executor.ranks.rank_connection import LOOPBACK
from indb_tensile.executor.ranks.rank_group import RankGroup
from tests.executor.ranks.group_kinds import HOST, GlooCollectives, Reached
from tests.executor.ranks.rank_threads import on_ranks

SHARE = RankShare(rank=0, ranks=2)
GPU = torch.device("cuda", 0)


@dataclass
class FakeGpu:
    """A GPU in host memory, whose driver says these bytes are free, one after the other."""

    group: RankGroup
    free: list[int]
    place: torch.device = HOST
    before: Callable[[], None] = field(default=lambda: None)
    names: list[str] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    used_by: list[str] = field(default_factory=list)

    def use(self) -> None:
        self.used_by.append(threading.current_thread().name)

    def free_bytes(self) -> int:
        return self.free.pop(0)

    def zeros(self, elements: int) -> Tensor:
        return torch.zeros(elements)

    def mark(self) -> Reached:
        return Reached()

    def collectives(self, store: Store, share: RankShare, name: str) -> Collectives:
        store.set(f"key of {share.rank}", name)
        assert store.get(f"key of {share.rank}") == name.encode()
        self.stores.append(store)
        self.names.append(name)
        self.before()
        return GlooCollectives(self.group)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the connection set variables for this test alone."""
    for name in ("ASYNC_ERROR_HANDLING", "DUMP_ON_TIMEOUT", "ENABLE_MONITORING", "BLOCKING_WAIT"):
        monkeypatch.setenv(f"TORCH_NCCL_{name}", "as before")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "")
    monkeypatch.delenv("NCCL_SOCKET_IFNAME")


def connect(gpu: FakeGpu, rank: int, store: Store, meeting_s: float = 60.0) -> tuple[RankGroup, int]:
    connected, taken_bytes = connect_by_nccl(
        gpu.group,
        store,
        RankShare(rank=rank, ranks=gpu.group.size()),
        gpu,
        attempt="7",
        meeting_s=meeting_s,
        timeout_s=60.0,
        address=LOOPBACK,
    )
    return connected, taken_bytes


def test_memory_that_nccl_takes_is_what_the_driver_has_less_after_the_first_operations() -> None:
    store = HashStore()

    def run(rank: int, group: RankGroup) -> tuple[int, list[str], list[str], float]:
        gpu = FakeGpu(group, [5000, 5000 - 600 - rank])
        connected, taken_bytes = connect(gpu, rank, store)
        value = torch.ones(2)
        connected.allreduce([value]).wait()
        return taken_bytes, gpu.names, gpu.used_by, float(value[0])

    name = ["ranks of attempt 7"]
    thread = ["connecting by NCCL"]
    assert on_ranks(2, run) == [(600, name, thread, 2.0), (601, name, thread, 2.0)]
    assert store.get("nccl/7/key of 1") == b"ranks of attempt 7", "apart from other attempts"


def test_threads_of_pytorch_do_not_reach_the_store_of_ranks_once_all_have_met() -> None:
    store = HashStore()

    def run(rank: int, group: RankGroup) -> None:
        gpu = FakeGpu(group, [2, 1])
        connected, _ = connect(gpu, rank, store)
        (own,) = gpu.stores
        own.set("exception_dump", "1")
        assert not own.check(["exception_dump"])
        with pytest.raises(RuntimeError, match="asked for after all ranks have met"):
            own.get("exception_dump")
        connected.abort()

    on_ranks(1, run)
    assert store.check(["nccl/7/key of 0"])
    assert not store.check(["nccl/7/exception_dump"])


def test_process_is_set_so_that_pytorch_neither_ends_it_nor_asks_the_store() -> None:
    on_ranks(1, lambda rank, group: connect(FakeGpu(group, [2, 1]), rank, HashStore()))
    assert {name: value for name, value in os.environ.items() if name.startswith(("TORCH_NCCL_", "NCCL_S"))} == {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
        "TORCH_NCCL_ENABLE_MONITORING": "0",
        "TORCH_NCCL_BLOCKING_WAIT": "0",
        "NCCL_SOCKET_IFNAME": "=lo",
    }


def test_ranks_that_nccl_does_not_connect_in_time_are_lost() -> None:
    may_end = threading.Event()

    def hang() -> None:
        may_end.wait(60.0)

    def run(rank: int, group: RankGroup) -> RankLostError:
        with pytest.raises(RankLostError) as caught:
            connect(FakeGpu(group, [2, 1], before=hang), rank, HashStore(), meeting_s=0.05)
        may_end.set()
        return caught.value

    (error,) = on_ranks(1, run)
    assert error.message == "rank 0 of 1 could not connect to the others by NCCL"
    assert error.detail == "The connection says: NCCL has not connected all ranks within 0.05 s"


def test_error_of_nccl_in_connecting_is_told() -> None:
    def fail() -> None:
        raise RuntimeError("NCCL error: unhandled cuda error\nand more lines")

    def run(rank: int, group: RankGroup) -> str:
        with pytest.raises(RankLostError, match="rank 0 of 1 could not connect to the others by NCCL") as caught:
            connect(FakeGpu(group, [2, 1], before=fail), rank, HashStore())
        return caught.value.detail

    assert on_ranks(1, run) == ["The connection says: NCCL error: unhandled cuda error"]


def test_gpu_without_nccl_and_device_that_is_no_gpu_are_refused() -> None:
    refuse_without_nccl(GPU, available=lambda: True)
    with pytest.raises(DeviceError, match=re.escape(f"PyTorch {torch.__version__} was built without NCCL")):
        refuse_without_nccl(GPU, available=lambda: False)
    with pytest.raises(DeviceError, match="this device is not a GPU but cpu"):
        refuse_without_nccl(HOST, available=lambda: True)


def test_two_ranks_of_one_gpu_are_refused() -> None:
    refuse_shared_gpus(["GPU a of h", "GPU b of h", "GPU a of i"])
    message = "ranks 0 and 2 of 3 are both on GPU a of h, and NCCL takes one rank of each GPU"
    with pytest.raises(DeviceError, match=message):
        refuse_shared_gpus(["GPU a of h", "GPU b of h", "GPU a of h"])


def test_rank_waits_until_the_controller_has_given_memory_back_to_the_driver() -> None:
    free, waited = [100, 300, 700, 0], [0.0]

    def pause(seconds: float) -> None:
        waited[0] += seconds

    await_room(SHARE, lambda: free.pop(0), 688, 60.0, clock_s=lambda: waited[0], pause=pause)
    assert free == [0]
    assert 0.0 < waited[0] < 1.0


def test_rank_without_room_for_nccl_ends_the_attempt_with_both_sizes() -> None:
    now = [0.0]

    def pause(seconds: float) -> None:
        now[0] += seconds

    with pytest.raises(RankLostError, match="rank 0 of 2 has no room for NCCL on its GPU") as caught:
        await_room(SHARE, lambda: 300, 688, 60.0, clock_s=lambda: now[0], pause=pause)
    assert caught.value.detail == "NCCL needs 688 bytes outside the job's memory, and 300 are free."
    assert 60.0 <= now[0] < 61.0


def test_interface_is_found_by_its_address() -> None:
    assert [interface_of(address) for address in ("127.0.0.1", "127.0.0.7")] == ["lo", "lo"]
    assert interface_of("198.51.100.7") is None, "of a network for documentation"
    if Path("/proc/net/if_inet6").exists():
        assert interface_of("::1") in ("lo", None)
