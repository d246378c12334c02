"""Ranks rehearse the exchanges of their steps before they train, and notice if one of them goes meanwhile."""

import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from indb_tensile.errors import RankLostError
from indb_tensile.executor.capture.passes import Passes
from indb_tensile.executor.capture.rank_share import RankShare, Reduce
from indb_tensile.executor.capture.step_capture import CapturedStep
from indb_tensile.executor.latency.exchange_rehearsal import LONGEST_NS, rehearse, rehearsed_network
from indb_tensile.executor.latency.operator_turns import PreparedCall
from indb_tensile.executor.ranks.rank_group import RankGroup
from indb_tensile.executor.ranks.step_exchange import exchanging
from indb_tensile.executor.run.runner import Runner
from indb_tensile.executor.run.state import HOST, State
from indb_tensile.scheduler.memory.peak import LIVENESS
from indb_tensile.scheduler.timing.rehearsed_exchanges import LEAST, MOST, Rehearsal
from tests.device.memory_device import MemoryDevice
from tests.executor.conftest import DEFAULTS, job_of
from tests.executor.models import Job
from tests.executor.ranks.group_kinds import DOUBLE, GLOO, GroupKind
from tests.executor.ranks.rank_steps import steps_of
from tests.executor.ranks.rank_threads import on_ranks
from tests.scheduler.timing.networks import network_of

DEADLINE_S = 300.0
PARTS = Passes(micro_batch_size=2)


class Noting:
    """A group that notes what its exchanges send, and that may end before so many all-to-alls."""

    def __init__(self, group: RankGroup, ends_before: int | None = None) -> None:
        self._group = group
        self._ends_before = ends_before
        self.sent: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def alltoall_base(
        self, received: torch.Tensor, sent: torch.Tensor, receives: list[int], sends: list[int], /
    ) -> torch.distributed.Work:
        self.sent.append((tuple(receives), tuple(sends), sent.dtype))
        if len(self.sent) == self._ends_before:
            self._group.abort()
        return self._group.alltoall_base(received, sent, receives, sends)

    def allreduce(self, tensors: list[torch.Tensor], /) -> torch.distributed.Work:
        self.sent += [(tensor.numel(), tensor.dtype) for tensor in tensors if tensor.is_floating_point()]
        return self._group.allreduce(tensors)


def latency_ns(step: CapturedStep, ns: int = 1_000) -> tuple[int, ...]:
    return (ns,) * len(step.graph.operators)


def trained(job: Job, share: RankShare, steps: tuple[CapturedStep, ...], group: RankGroup) -> list[tuple[Any, ...]]:
    """Return what an iteration sends."""
    noting = Noting(group)
    state = State.create(job.module, job.settings, HOST, share)
    runner = Runner(MemoryDevice(), state, steps)
    with exchanging(cast(RankGroup, noting)):
        runner.adopt((LIVENESS,) * 3, 1)
        runner.train(*job.batches[0], 0.1)
    runner.close()
    return noting.sent


@pytest.mark.by_day("exact-3", "whole-fast-2", "divided-exact-2")
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("reduce", Reduce)
@pytest.mark.parametrize("divides_state", [False, True], ids=["whole", "divided"])
def test_rehearsal_makes_the_exchanges_of_the_step_again_and_again(
    ranks: int, reduce: Reduce, divides_state: bool
) -> None:
    job = job_of("mlp", 0, DEFAULTS, PARTS)
    shares = [RankShare(rank=r, ranks=ranks, reduce=reduce, divides_state=divides_state) for r in range(ranks)]
    steps = [steps_of(job, share) for share in shares]

    def run(rank: int, group: RankGroup) -> Rehearsal | None:
        expected = trained(job, shares[rank], steps[rank], group)
        noting = Noting(group)
        rehearsal = rehearse(cast(RankGroup, noting), steps[rank][0], latency_ns(steps[rank][0]))
        iterations = len(noting.sent) // len(expected)
        assert iterations > 2
        assert noting.sent == expected * iterations
        return rehearsal

    first, *others = on_ranks(ranks, run)
    assert first is not None
    assert first.error_ns > 0
    assert others == [first] * (ranks - 1), "all have the mean of all"


@pytest.mark.parametrize("kind", [GLOO, DOUBLE], ids=["gloo", "double"])
def test_network_that_was_rehearsed_is_the_same_but_for_the_time_of_exchanges(kind: GroupKind) -> None:
    job, network = job_of("mlp", 0, DEFAULTS, PARTS), network_of(2, message_ns=10_000)
    shares = [RankShare(rank=rank, ranks=2) for rank in range(2)]
    steps = [steps_of(job, share)[0] for share in shares]

    def run(rank: int, group: RankGroup) -> float:
        rehearsed = rehearsed_network(group, steps[rank], latency_ns(steps[rank]), shares[rank], network)
        assert replace(rehearsed, stretch=1.0) == network
        return rehearsed.stretch

    assert all(LEAST <= stretch <= MOST for stretch in on_ranks(2, run, kind=kind))


@pytest.mark.parametrize(
    ("room_bytes", "operator_ns"), [(1 << 20, LONGEST_NS + 1), (64, 1_000)], ids=["long step", "little room"]
)
def test_no_rank_rehearses_if_one_of_them_cannot(room_bytes: int, operator_ns: int) -> None:
    job, network = job_of("mlp", 0, DEFAULTS, PARTS), network_of(2)
    shares = [RankShare(rank=rank, ranks=2) for rank in range(2)]
    steps = [steps_of(job, share)[0] for share in shares]

    def run(rank: int, group: RankGroup) -> None:
        noting = cast(RankGroup, Noting(group, ends_before=1))
        room, ns = (room_bytes, operator_ns) if rank == 1 else (1 << 20, 1_000)
        assert rehearse(noting, steps[rank], latency_ns(steps[rank], ns), room_bytes=room) is None
        if operator_ns > LONGEST_NS:
            assert (
                rehearsed_network(noting, steps[rank], latency_ns(steps[rank], ns), shares[rank], network) == network
            )

    on_ranks(2, run)


@pytest.mark.parametrize("reduce", Reduce)
@pytest.mark.parametrize("divides_state", [False, True], ids=["whole", "divided"])
def test_rehearsal_in_any_room_is_made_or_refused_and_no_tensors_of_an_exchange_overlap(
    reduce: Reduce, divides_state: bool
) -> None:
    """Torch refuses to add tensors that share some of their memory."""
    job = job_of("mlp", 0, DEFAULTS, PARTS)
    shares = [RankShare(rank=r, ranks=2, reduce=reduce, divides_state=divides_state) for r in range(2)]
    steps = [steps_of(job, share)[0] for share in shares]
    rooms = [1 << exponent for exponent in range(8, 17)]

    def run(rank: int, group: RankGroup) -> list[bool]:
        step = steps[rank]
        return [rehearse(group, step, latency_ns(step, 20_000), room_bytes=room) is not None for room in rooms]

    first, second = on_ranks(2, run)
    assert first == second == sorted(first)
    assert set(first) == {False, True}


def test_rehearsal_draws_no_random_numbers_from_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of("mlp", 0, DEFAULTS, PARTS)
    steps = [steps_of(job, RankShare(rank=rank, ranks=2))[0] for rank in range(2)]
    run_call = PreparedCall.run

    def draw(call: PreparedCall) -> None:
        torch.rand(1)
        run_call(call)

    monkeypatch.setattr(PreparedCall, "run", draw)
    before = torch.get_rng_state()
    on_ranks(2, lambda rank, group: rehearse(group, steps[rank], latency_ns(steps[rank])))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("ranks", [2, 3])
def test_rank_that_goes_in_a_rehearsal_is_noticed_by_the_others(ranks: int) -> None:
    job = job_of("mlp", 0, DEFAULTS, PARTS)
    shares = [RankShare(rank=rank, ranks=ranks) for rank in range(ranks)]
    steps = [steps_of(job, share)[0] for share in shares]

    def run(rank: int, group: RankGroup) -> str:
        noting = cast(RankGroup, Noting(group, ends_before=5 if rank == 1 else None))
        with pytest.raises(RankLostError) as caught:
            rehearsed_network(noting, steps[rank], latency_ns(steps[rank]), shares[rank], network_of(ranks))
        return caught.value.message

    assert on_ranks(ranks, run) == [f"rank {rank} of {ranks} has lost another rank" for rank in range(ranks)]


@pytest.mark.nightly
@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_processes_that_rehearse_end_when_one_is_gone(tmp_path: Path, blow: signal.Signals) -> None:
    limit_s = 3.0 if blow is signal.SIGSTOP else 300.0
    command = (sys.executable, "-m", "tests.executor.ranks.rehearsal_process", str(tmp_path))
    started = [
        subprocess.Popen((*command, str(rank), "3", str(limit_s)), stdout=subprocess.PIPE, text=True)
        for rank in range(3)
    ]
    try:
        deadline_s = time.monotonic() + DEADLINE_S
        while not all((tmp_path / f"{rank}.rehearses").exists() for rank in range(3)):
            assert time.monotonic() < deadline_s, "a rank does not rehearse"
            assert all(process.poll() is None for process in started), "a rank has ended"
            time.sleep(0.02)
        started[1].send_signal(blow)
        ended = [(p.communicate(timeout=DEADLINE_S)[0].strip(), p.returncode) for p in (started[0], started[2])]
        assert ended == [(f"rank {rank} of 3 has lost another rank", 71) for rank in (0, 2)]
    finally:
        for process in started:
            process.kill()
            process.communicate()
