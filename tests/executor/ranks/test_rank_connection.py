"""Check how ranks meet, and how they notice that one of them is gone."""

import contextlib
import re
import socket
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore

from indb_tensile.errors import RankLostError, RequestError
from indb_tensile.executor.capture.rank_share import RankShare
from indb_tensile.executor.ranks.part_exchange import PartExchange
from indb_tensile.executor.ranks.rank_connection import LOOPBACK, broadcast_bytes, join_ranks
from indb_tensile.executor.ranks.rank_group import RankGroup
from indb_tensile.executor.ranks.step_exchange import exchanging
from tests.executor.ranks.group_kinds import GroupKind, group_kinds
from tests.executor.ranks.rank_steps import room_of, sum_parts
from tests.executor.ranks.rank_threads import on_ranks

FIRST = RankShare(rank=0, ranks=2)
LIMIT_S = 60.0


def finish(group: RankGroup, work: torch.distributed.Work) -> None:
    work.wait()
    group.settle()


def test_rank_that_does_not_come_is_noticed() -> None:
    with pytest.raises(RankLostError, match="rank 0 of 2 has not met all other ranks") as caught:
        join_ranks(HashStore(), FIRST, attempt="1", meeting_s=0.05, timeout_s=60.0)
    assert caught.value.hint == "The attempt of all ranks ends, and the job goes on from its last checkpoint."


def test_rank_of_an_earlier_attempt_is_not_met() -> None:
    store = HashStore()
    with pytest.raises(RankLostError):
        join_ranks(store, RankShare(rank=1, ranks=2), attempt="1", meeting_s=0.05, timeout_s=60.0)
    with pytest.raises(RankLostError):
        join_ranks(store, FIRST, attempt="2", meeting_s=0.05, timeout_s=60.0)


@pytest.mark.parametrize("kind", group_kinds(3))
def test_rank_that_has_gone_is_noticed_by_the_exchange_of_the_others(kind: GroupKind) -> None:
    all_have_sums = threading.Barrier(3)

    def run(rank: int, group: RankGroup) -> str:
        value = torch.ones(3, device=kind.place(rank))
        with exchanging(group):
            total = sum_parts(value, [1, 1, 1])
            assert torch.equal(total.cpu(), torch.full((3,), 3.0))
            all_have_sums.wait(60)
            if rank == 1:
                group.abort()  # as the end of its process does
                return "left"
            with pytest.raises(RankLostError) as caught:
                sum_parts(value, [1, 1, 1])
        return caught.value.message

    assert on_ranks(3, run, kind=kind) == [
        "rank 0 of 3 has lost another rank",
        "left",
        "rank 2 of 3 has lost another rank",
    ]


@pytest.mark.parametrize("kind", group_kinds(2))
def test_abort_ends_the_exchange_under_way_and_every_later_one_and_the_other_rank_notices(kind: GroupKind) -> None:
    aborted = threading.Event()

    def run(rank: int, group: RankGroup) -> str:
        value = torch.ones(3, device=kind.place(rank))
        if rank == 0:
            under_way = group.allreduce([value])
            group.abort()
            with pytest.raises(RuntimeError):
                finish(group, under_way)
            aborted.set()
        assert aborted.wait(LIMIT_S), "the exchange goes on after the call of abort"
        with pytest.raises(RuntimeError):
            finish(group, group.allreduce([value]))
        return "ended"

    assert on_ranks(2, run, timeout_s=2 * LIMIT_S, kind=kind) == ["ended"] * 2


def test_abort_leaves_connections_that_are_not_of_the_group() -> None:
    def run(rank: int, group: RankGroup) -> str:
        group.abort()
        return "aborted"

    with socket.create_server((LOOPBACK, 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            assert on_ranks(2, run) == ["aborted"] * 2
            client.sendall(b"still here")
            assert accepted.recv(16) == b"still here"


@pytest.mark.parametrize("kind", group_kinds(3))
def test_ranks_without_parts_take_part_in_the_exchange(kind: GroupKind) -> None:
    def run(rank: int, group: RankGroup) -> list[float]:
        own = [torch.tensor([1.5, 2.5], device=kind.place(rank))] if rank == 2 else []
        total = torch.empty(2, device=kind.place(rank))
        parts = (range(0), range(0), range(1))
        PartExchange(group=group, parts=parts).exact_sum(own, total, room_of(total, len(own), parts))
        group.settle()
        return [*map(float, total)]

    assert on_ranks(3, run, kind=kind) == [[1.5, 2.5]] * 3


@settings(max_examples=12)
@given(data=st.data(), ranks=st.integers(2, 4))
def test_all_to_alls_that_are_under_way_at_once_bring_each_rank_its_stretches_in_order(
    data: st.DataObject, ranks: int
) -> None:
    row = st.lists(st.integers(0, 3), min_size=ranks, max_size=ranks)
    rounds = data.draw(st.lists(st.lists(row, min_size=ranks, max_size=ranks), min_size=1, max_size=3))

    def stretch(number: int, source: int, target: int) -> list[float]:
        return [100.0 * number + 10 * source + target] * rounds[number][source][target]

    def run(rank: int, group: RankGroup) -> list[list[float]]:
        works, received = [], []
        for number, lengths in enumerate(rounds):
            sent = torch.tensor([x for target in range(ranks) for x in stretch(number, rank, target)])
            receives = [lengths[source][rank] for source in range(ranks)]
            received.append(torch.zeros(sum(receives)))
            works.append(group.alltoall_base(received[-1], sent, receives, lengths[rank]))
        for work in works:
            work.wait()
        return [into.tolist() for into in received]

    for rank, received in enumerate(on_ranks(ranks, run)):
        assert received == [
            [x for source in range(ranks) for x in stretch(number, source, rank)] for number in range(len(rounds))
        ]


@pytest.mark.parametrize("sends", [True, False], ids=["sent", "received"])
def test_message_that_the_other_rank_does_not_take_part_in_ends_after_the_timeout(sends: bool) -> None:
    ended = threading.Event()

    def run(rank: int, group: RankGroup) -> str:
        if rank == 1:  # as a process that is stopped, whose connections stay open
            assert ended.wait(LIMIT_S), "the other rank waits for ever"
            return "silent"
        lengths = ([0, 0], [0, 1]) if sends else ([0, 1], [0, 0])
        with pytest.raises(RuntimeError):
            group.alltoall_base(torch.zeros(sum(lengths[0])), torch.zeros(sum(lengths[1])), *lengths).wait()
        ended.set()
        return "ended"

    assert on_ranks(2, run, timeout_s=0.2) == ["ended", "silent"]


@pytest.mark.parametrize("address", ["8.8.8.8", "0.0.0.0", "2001:4860:4860::8888"])
def test_address_that_strangers_reach_is_refused(address: str) -> None:
    message = f"ranks cannot listen on {address}, which is not an address of a private network"
    with pytest.raises(RequestError, match=re.escape(message)):
        join_ranks(HashStore(), FIRST, attempt="1", meeting_s=0.05, timeout_s=60.0, address=address)


def test_name_in_place_of_an_address_is_refused() -> None:
    with pytest.raises(RequestError, match='"localhost" is not an address on which ranks can listen'):
        join_ranks(HashStore(), FIRST, attempt="1", meeting_s=0.05, timeout_s=60.0, address="localhost")


def listening_ports() -> list[int]:
    """Return the TCP ports of 127.0.0.1 on which this process listens."""
    own = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has been closed since
            own.add(str(path.readlink()))
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = "0A"
    return [
        int(address.partition(":")[2], 16)
        for _, address, _, state, *_, inode in (row[:10] for row in rows)
        if state == listening and address.startswith("0100007F") and f"socket:[{inode}]" in own
    ]


def test_stranger_who_connects_to_ranks_that_train_disturbs_nothing() -> None:
    meeting = threading.Barrier(2, timeout=60.0)  # a fault of one rank must not make the other wait for ever

    def run(rank: int, group: RankGroup) -> list[float]:
        meeting.wait()
        if rank == 0:
            accepted = 0
            for port in listening_ports():  # among them may be ports of ranks that have ended, which close just now
                for sent in (b"", b"\0" * 4096, b"\xff" * 4096, (1).to_bytes(8, "little") + b"x" * 100):
                    with (
                        contextlib.suppress(ConnectionError),
                        socket.create_connection(("127.0.0.1", port)) as stranger,
                    ):
                        accepted += 1
                        stranger.sendall(sent)
            assert accepted >= 8
        meeting.wait()
        with exchanging(group):
            total = sum_parts(torch.ones(3), [1, 1])
        return [*map(float, total)]

    assert on_ranks(2, run) == [[2.0, 2.0, 2.0]] * 2


@pytest.mark.parametrize("kind", group_kinds(3))
@pytest.mark.parametrize("content", [b"", b"\x00checkpoint" * 1000])
def test_all_ranks_get_the_bytes_of_rank_0(content: bytes, kind: GroupKind) -> None:
    def run(rank: int, group: RankGroup) -> bytes:
        return broadcast_bytes(group, content if rank == 0 else b"other")

    assert on_ranks(3, run, kind=kind) == [content] * 3
