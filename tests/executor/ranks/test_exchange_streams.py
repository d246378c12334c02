"""Check that exchanges are ordered behind the kernels before them, and that values of a GPU never go to the host."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import cast

import pytest
import torch
from torch._C._distributed_c10d import ErrorType

from indb_tensile.errors import RankLostError
from indb_tensile.executor.capture.exchange_operator import (
    finish_all_reduce_,
    finish_sum_parts_,
    start_all_reduce_,
    start_sum_parts_,
)
from indb_tensile.executor.capture.exchange_room import (
    PIECE_ELEMENTS,
    handed_out_elements,
    owner_elements,
    parts_elements,
    reduced_elements,
)
from indb_tensile.executor.capture.owner_operators import (
    finish_hand_out_,
    finish_sum_at_owners_,
    start_hand_out_,
    start_sum_at_owners_,
)
from indb_tensile.executor.ranks.exchange_lane import ExchangeLane
from indb_tensile.executor.ranks.exchange_streams import ExchangeStreams
from indb_tensile.executor.ranks.nccl_ranks import ControlGroup, NcclRanks
from indb_tensile.executor.ranks.rank_group import RankGroup
from indb_tensile.executor.ranks.step_exchange import exchanging
from tests.executor.ranks.counting_group import CountingGroup
from tests.executor.ranks.group_kinds import Reached

GPU = torch.device("cuda", 0)
META = torch.device("meta")  # its values can be neither read nor copied to the host
MAIN = threading.current_thread().name


@dataclass
class FakeEvent:
    """An event of a stream, by the number of calls before it."""

    name: str

    def query(self) -> bool:
        return True


class FakeStream:
    """A stream that writes down what it is told, and in which thread."""

    def __init__(self, driver: "FakeCuda", name: str) -> None:
        self._driver = driver
        self.name = name

    def record_event(self) -> FakeEvent:
        self._driver.events += 1
        self._driver.note(f"{self.name} marks {self._driver.events}")
        return FakeEvent(str(self._driver.events))

    def wait_event(self, event: FakeEvent) -> None:
        self._driver.note(f"{self.name} waits for {event.name}")

    def synchronize(self) -> None:
        self._driver.note(f"host waits for {self.name}")


class FakeCuda:
    """PyTorch's interface to the driver, as far as exchanges use it. Each thread has a current stream."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.events = 0
        self.made: list[tuple[torch.device, int]] = []
        self._current = threading.local()

    def note(self, call: str) -> None:
        where = "step" if threading.current_thread().name == MAIN else "lane"
        self.calls.append(f"{where}: {call}")

    def current_stream(self, place: torch.device) -> FakeStream:
        del place
        return getattr(self._current, "stream", FakeStream(self, "computing stream"))

    def Stream(self, place: torch.device, priority: int = 0) -> FakeStream:
        self.made.append((place, priority))
        return FakeStream(self, f"stream {len(self.made)}")

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        self._current.stream = stream
        yield
        del self._current.stream


def test_exchange_begins_behind_the_kernels_before_it_on_the_stream_of_the_lane() -> None:
    cuda = FakeCuda()
    lane = ExchangeLane(nullcontext, ExchangeStreams(cuda))
    for number in (1, 2):
        lane.start(lambda n=number: cuda.note(f"exchange {n} on {cuda.current_stream(GPU).name}"), GPU)  # type: ignore[misc]
        lane.finish()
    lane.close(lambda: None)
    assert cuda.calls == [
        "step: computing stream marks 1",
        "lane: stream 1 waits for 1",
        "lane: exchange 1 on stream 1",
        "lane: host waits for stream 1",
        "step: computing stream marks 2",
        "lane: stream 1 waits for 2",
        "lane: exchange 2 on stream 1",
        "lane: host waits for stream 1",
    ]
    assert cuda.made == [(GPU, -1)], "one stream, of another pool than the computing one"


def test_exchange_that_fails_is_not_waited_for() -> None:
    """The device may never reach the end of what was queued."""
    cuda = FakeCuda()

    def fail() -> None:
        raise ZeroDivisionError

    lane = ExchangeLane(nullcontext, ExchangeStreams(cuda))
    lane.start(fail, GPU)
    with pytest.raises(ZeroDivisionError):
        lane.finish()
    lane.close(lambda: None)
    assert cuda.calls == ["step: computing stream marks 1", "lane: stream 1 waits for 1"]


def test_exchange_in_host_memory_asks_nothing_of_a_driver() -> None:
    cuda = FakeCuda()
    lane = ExchangeLane(nullcontext, ExchangeStreams(cuda))
    lane.run(lambda: None, torch.device("cpu"))
    lane.close(lambda: None)
    assert cuda.calls == []


@dataclass
class DeviceOnly:
    """NCCL for one rank whose partners are not there: it only checks that all values are on the device."""

    group: CountingGroup

    def alltoall_base(
        self, received: torch.Tensor, sent: torch.Tensor, receives: list[int], sends: list[int], /
    ) -> torch.distributed.Work:
        assert received.device == sent.device == META
        assert (sum(receives), sum(sends)) == (received.numel(), sent.numel())
        return self.group.alltoall_base(received, sent, receives, sends)

    def broadcast(self, tensor: torch.Tensor, root: int, /) -> torch.distributed.Work:
        raise AssertionError("no exchange of a step broadcasts")

    def allreduce(self, tensors: list[torch.Tensor], /) -> torch.distributed.Work:
        assert all(tensor.device == META for tensor in tensors)
        return self.group.allreduce(tensors)

    def get_error(self) -> ErrorType:
        return ErrorType.SUCCESS

    def abort(self) -> None:
        """Do nothing: nothing is under way."""


class NoHost(CountingGroup):
    """A connection by Gloo over which nothing may be sent."""

    def is_connected(self) -> bool:
        return True

    def alltoall_base(self, *_: object) -> torch.distributed.Work:
        raise AssertionError("an exchange in host memory")

    allreduce = alltoall_base


def values_of(*sizes: int) -> list[torch.Tensor]:
    return [torch.empty(size, device=META) for size in sizes]


def room_for(elements: int) -> torch.Tensor:
    return torch.empty(4 * elements, dtype=torch.uint8, device=META)


def sum_parts(ranks: int, *sizes: int) -> None:
    counts = [2] * ranks
    values, others, room = values_of(*sizes), values_of(*sizes), room_for(parts_elements(sizes, counts, 2))
    start_sum_parts_(values, others, room, counts=counts, own=2)
    finish_sum_parts_(values, others, room, counts=counts, own=2)


def all_reduce(ranks: int, *sizes: int) -> None:
    values, room = values_of(*sizes), room_for(reduced_elements(sizes, ranks))
    start_all_reduce_(values, room)
    finish_all_reduce_(values, room)


def divided(ranks: int, *sizes: int) -> None:
    owners, counts = [k % ranks for k in range(len(sizes))], [1] * ranks
    values = values_of(*sizes)
    own = [value for value, owner in zip(values, owners, strict=True) if owner == 0]
    room = room_for(owner_elements(sizes, owners, counts, 1, 0))
    names = {"counts": counts, "owners": owners, "sizes": sizes, "rank": 0, "dtype": torch.float32}
    start_sum_at_owners_(own, values, room, **names)
    finish_sum_at_owners_(own, values, room, **names)


def handed_out(ranks: int, *sizes: int) -> None:
    owners = [0, *range(ranks)]  # the first rank has two parts
    values = values_of(*[sum(sizes)] * len(owners))
    room = room_for(handed_out_elements([sum(sizes)] * len(owners), owners, ranks))
    start_hand_out_(values, room, owners=owners, ranks=ranks, rank=0)
    finish_hand_out_(values, room, owners=owners, ranks=ranks, rank=0)


EXCHANGES = [sum_parts, all_reduce, divided, handed_out]
LARGE = PIECE_ELEMENTS + 5


@pytest.mark.parametrize("sizes", [(7, 9, 4), (LARGE,)], ids=["bucket", "pieces"])
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_values_of_a_gpu_are_exchanged_by_nccl_without_a_copy_to_the_host(
    exchange: Callable[..., None], ranks: int, sizes: tuple[int, ...]
) -> None:
    counted = CountingGroup(0, ranks)
    control = cast(ControlGroup, NoHost(0, ranks))
    group = NcclRanks(control, DeviceOnly(counted), META, timeout_s=60.0, mark=Reached)
    with exchanging(cast(RankGroup, group)):
        exchange(ranks, *sizes)
    assert counted.transfers, "something is sent"


def test_values_of_a_gpu_are_copied_to_the_host_without_nccl() -> None:
    with pytest.raises(RankLostError) as caught, exchanging(CountingGroup(0, 3)):
        all_reduce(3, LARGE)
    assert caught.value.detail == "The connection says: Cannot copy out of meta tensor; no data!"
