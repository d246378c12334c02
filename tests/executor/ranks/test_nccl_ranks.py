"""Check the connection of ranks by NCCL with doubles of NCCL, of the driver, and of the clock."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import torch
from torch._C._distributed_c10d import ErrorType

from indb_tensile.errors import RankLostError
from indb_tensile.executor.ranks.nccl_ranks import ControlGroup, NcclRanks, leaving
from indb_tensile.executor.ranks.rank_connection import while_ranks_answer
from indb_tensile.executor.ranks.rank_group import RankGroup
from indb_tensile.executor.ranks.step_exchange import exchanging
from tests.executor.ranks.counting_group import Ended
from tests.executor.ranks.group_kinds import GLOO, over_gloo
from tests.executor.ranks.rank_steps import sum_parts
from tests.executor.ranks.rank_threads import on_ranks

META = torch.device("meta")  # stands for a GPU: its values can be neither read nor copied to the host
LIMIT_S = 60.0


NEVER = -1


@dataclass
class Mark:
    """A mark that the device reaches after it has been asked for so many times, or never."""

    questions: int = 0

    def query(self) -> bool:
        if self.questions > 0:
            self.questions -= 1
            return False
        return self.questions != NEVER


@dataclass
class Clock:
    """A clock that goes on with every pause."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Partner:
    """A group of two ranks of which this one is rank 0. It writes down what is called, and answers at once."""

    name: str
    calls: list[str]
    connected: bool = True
    sends_device_memory: bool = False
    fails: str = ""
    error: ErrorType = ErrorType.SUCCESS
    aborting: Callable[[], None] = field(default=lambda: None)

    def size(self) -> int:
        return 2

    def rank(self) -> int:
        return 0

    def is_connected(self) -> bool:
        return self.connected

    def get_error(self) -> ErrorType:
        return self.error

    def _note(self, what: str, *values: torch.Tensor) -> torch.distributed.Work:
        self.calls.append(f"{self.name} {what} {' '.join(str(value.device) for value in values)}")
        if self.fails == what:
            raise RuntimeError("the connection is closed")
        return Ended()

    def alltoall_base(self, received: Any, sent: Any, receives: Any, sends: Any, /) -> torch.distributed.Work:
        return self._note("all-to-all", received, sent)

    def broadcast(self, tensor: torch.Tensor, root: int, /) -> torch.distributed.Work:
        return self._note("broadcast", tensor)

    def allreduce(self, tensors: list[torch.Tensor], /) -> torch.distributed.Work:
        return self._note("all-reduce", *tensors)

    def settle(self) -> None:
        self.calls.append(f"{self.name} settles")

    def abort(self) -> None:
        self.calls.append(f"{self.name} aborts")
        self.aborting()


@dataclass
class Rig:
    """Ranks by NCCL between doubles, with the marks that the device is to reach, in order."""

    marks: list[int] = field(default_factory=list)
    timeout_s: float = 10.0
    abort_s: float = LIMIT_S
    pausing: Callable[[], None] = field(default=lambda: None)

    def __post_init__(self) -> None:
        self.calls: list[str] = []
        self.clock = Clock()
        self.control = Partner("gloo", self.calls)
        self.nccl = Partner("nccl", self.calls)
        self.ranks = NcclRanks(
            cast(ControlGroup, self.control),
            self.nccl,
            META,
            timeout_s=self.timeout_s,
            mark=lambda: Mark(self.marks.pop(0) if self.marks else 0),
            abort_s=self.abort_s,
            clock_s=self.clock,
            pause=self.pause,
        )

    def pause(self, seconds: float) -> None:
        self.clock.now_s += seconds
        self.pausing()


def test_values_on_the_device_go_by_nccl_and_all_others_by_gloo() -> None:
    rig = Rig()
    there, here = torch.empty(4, device=META), torch.empty(4)
    for value in (there, here):
        rig.ranks.alltoall_base(value, value, [2, 2], [2, 2]).wait()
        rig.ranks.broadcast(value, 0).wait()
        rig.ranks.allreduce([value]).wait()
    assert rig.calls == [
        "nccl all-to-all meta meta",
        "nccl broadcast meta",
        "nccl all-reduce meta",
        "gloo all-to-all cpu cpu",
        "gloo broadcast cpu",
        "gloo all-reduce cpu",
    ]
    assert (rig.ranks.rank(), rig.ranks.size()) == (0, 2)


def test_host_waits_for_operations_when_they_have_to_have_ended_and_not_before() -> None:
    rig = Rig(marks=[3, 2, 1])
    value = torch.empty(4, device=META)
    for _ in range(2):
        rig.ranks.allreduce([value]).wait()
    assert rig.clock.now_s == 0.0
    rig.ranks.settle()
    assert rig.clock.now_s > 0.0
    assert rig.marks == [], "one mark for each operation, and one for what follows them"


def test_operation_that_does_not_end_in_time_ends_the_exchanges_of_all_ranks() -> None:
    rig = Rig(marks=[0, NEVER])
    value = torch.empty(4, device=META)
    for _ in range(2):
        rig.ranks.allreduce([value]).wait()
    with (
        pytest.raises(RankLostError, match="rank 0 of 2 has lost another rank") as caught,
        while_ranks_answer(cast(RankGroup, rig.ranks)),
    ):
        rig.ranks.settle()
    assert caught.value.detail == "The connection says: an operation of NCCL has not ended within 10 s"
    assert 10.0 <= rig.clock.now_s < 10.1
    assert rig.calls[2:] == ["gloo aborts", "nccl aborts"], "others notice first, as NCCL ends on all ranks together"
    with pytest.raises(RuntimeError, match="has not ended within 10 s"):
        rig.ranks.allreduce([value])
    rig.ranks.abort()
    assert rig.calls[2:] == ["gloo aborts", "nccl aborts"], "once"


def test_each_operation_has_the_whole_time() -> None:
    """Each takes about 8 s of pauses of a millisecond."""
    rig = Rig(marks=[8000, 8000, 0])
    for _ in range(2):
        rig.ranks.allreduce([torch.empty(4, device=META)]).wait()
    rig.ranks.settle()
    assert 15.0 < rig.clock.now_s < 20.0


def test_rank_whose_process_has_ended_is_noticed_long_before_the_time_is_over() -> None:
    rig = Rig(marks=[NEVER], timeout_s=300.0)
    rig.control.connected = False
    rig.ranks.allreduce([torch.empty(4, device=META)]).wait()
    with pytest.raises(RuntimeError, match="another rank has closed its connection"):
        rig.ranks.settle()
    assert rig.clock.now_s < 1.0
    assert rig.calls[1:] == ["gloo aborts", "nccl aborts"]


def test_error_that_nccl_reports_ends_the_exchanges_of_all_ranks() -> None:
    rig = Rig(marks=[NEVER], timeout_s=300.0)
    rig.nccl.error = ErrorType.COMM_ERROR
    rig.ranks.allreduce([torch.empty(4, device=META)]).wait()
    with pytest.raises(RuntimeError, match="NCCL reports COMM_ERROR"):
        rig.ranks.settle()
    assert rig.clock.now_s < 1.0
    assert rig.calls[1:] == ["gloo aborts", "nccl aborts"]


def test_another_thread_ends_the_wait_of_this_one() -> None:
    rig = Rig(marks=[NEVER])
    rig.ranks.allreduce([torch.empty(4, device=META)]).wait()
    rig.pausing = rig.ranks.abort
    with pytest.raises(RuntimeError, match="this rank has ended its exchanges"):
        rig.ranks.settle()


def test_nccl_that_does_not_end_itself_holds_up_nobody(caplog: pytest.LogCaptureFixture) -> None:
    rig, may_end = Rig(abort_s=0.01), threading.Event()

    def hang() -> None:
        may_end.wait(LIMIT_S)

    rig.nccl.aborting = hang
    rig.ranks.abort()
    may_end.set()
    assert "NCCL has not ended its operations within 0.01 s" in caplog.text


def test_error_of_nccl_in_ending_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()

    def fail() -> None:
        raise RuntimeError("unhandled cuda error")

    rig.nccl.aborting = fail
    rig.ranks.abort()
    assert "NCCL did not end its operations in order: unhandled cuda error" in caplog.text


def test_memory_of_nccl_is_given_back_after_the_last_exchange_of_all_ranks() -> None:
    rig = Rig()
    with leaving(cast(RankGroup, rig.ranks)):
        rig.calls.append("trains")
    assert rig.calls == ["trains", "gloo all-reduce cpu", "nccl aborts"]
    with pytest.raises(RuntimeError, match="this rank has left the others"):
        rig.ranks.broadcast(torch.empty(1, device=META), 0)


def test_training_that_fails_ends_the_exchanges_of_all_ranks() -> None:
    rig = Rig()
    with pytest.raises(ZeroDivisionError), leaving(cast(RankGroup, rig.ranks)):
        raise ZeroDivisionError
    assert rig.calls == ["gloo aborts", "nccl aborts"]


def test_rank_that_is_gone_after_the_last_exchange_is_not_missed() -> None:
    rig = Rig()
    rig.control.fails = "all-reduce"
    with leaving(cast(RankGroup, rig.ranks)):
        pass
    assert rig.calls == ["gloo all-reduce cpu", "gloo aborts", "nccl aborts"]


def test_ranks_by_gloo_alone_have_nothing_to_give_back() -> None:
    control = Partner("gloo", [])
    with leaving(cast(RankGroup, control)):
        pass
    assert control.calls == []


def test_rank_that_ends_while_the_device_waits_is_noticed_by_its_connection_of_gloo() -> None:
    """The device of rank 0 never ends the exchange, as NCCL's kernel does if another rank has gone."""
    gone = threading.Event()

    def run(rank: int, group: RankGroup) -> str:
        if rank == 1:
            sum_by(group, 0)
            group.abort()
            gone.set()
            return "left"
        sum_by(group, 0)
        assert gone.wait(LIMIT_S)
        with pytest.raises(RankLostError) as caught, while_ranks_answer(group):
            over_gloo(group, LIMIT_S * 5, mark=lambda: Mark(NEVER)).settle()
        return caught.value.detail

    def sum_by(group: RankGroup, questions: int) -> None:
        with exchanging(cast(RankGroup, over_gloo(group, mark=lambda: Mark(questions)))):
            assert sum_parts(torch.ones(3), [1, 1]).tolist() == [2.0] * 3

    detail = "The connection says: another rank has closed its connection"
    assert on_ranks(2, run, kind=GLOO) == [detail, "left"]


def test_connection_of_gloo_tells_whether_all_others_are_there() -> None:
    seen = threading.Event()

    def run(rank: int, group: RankGroup) -> list[bool]:
        control = cast(ControlGroup, group)
        before = control.is_connected()
        group.allreduce([torch.zeros(1)]).wait()
        if rank == 1:
            group.abort()
            seen.set()
        assert seen.wait(LIMIT_S)
        return [before, control.is_connected()]

    assert on_ranks(2, run) == [[True, False]] * 2
