"""Processes forked from one that has imported what they need; all of them real."""

import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from indb_tensile.controller.forkserver import Forked, ForkServer
from indb_tensile.controller.trainers import UNSTARTED, Ended, Gone, Trainers
from indb_tensile.scheduler.admission.orders import Manner
from indb_tensile.scheduler.admission.pool import TrainerId
from tests.controller.fakes import DEADLINE_S, FAKE_TRAINER
from tests.remains import nothing_remains

FIRST, SECOND = TrainerId(1), TrainerId(2)
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


@contextmanager
def server(module: str = "tests.controller.forked") -> Iterator[ForkServer]:
    with Path(os.devnull).open() as device:
        made = ForkServer(module=module, environment=ENVIRONMENT, device_fd=device.fileno())
        try:
            yield made
        finally:
            made.close()


def ask(asked: ForkServer, trainer: TrainerId, owned: ExitStack) -> socket.socket:
    """Have one forked; our end of its link."""
    ours, theirs = socket.socketpair()
    owned.enter_context(ours)
    life, held = os.pipe()
    asked.ask(trainer, theirs.fileno(), held)
    theirs.close()
    for descriptor in (life, held):
        os.close(descriptor)
    return ours


def begun(asked: ForkServer) -> list[Forked]:
    """What it answers next."""
    assert asked.control is not None
    assert select.select([asked.control], [], [], DEADLINE_S)[0], f"no answer within {DEADLINE_S} s"
    return asked.receive()


def test_a_copy_is_our_own_child_in_a_group_of_its_own_with_one_thread() -> None:
    with server() as asked, ExitStack() as owned:
        link = ask(asked, FIRST, owned)
        (forked,) = begun(asked)
        assert forked.trainer == FIRST
        assert forked.pid is not None
        assert link.recv(100).decode() == f"{forked.pid} {os.getpid()} {forked.pid} 1"
        link.sendall(b"7")
        assert os.waitstatus_to_exitcode(os.waitpid(forked.pid, 0)[1]) == 7


def test_other_orphans_are_not_adopted_once_all_who_were_asked_for_have_begun() -> None:
    """Nobody would wait for them."""
    with server() as asked, ExitStack() as owned:
        link = ask(asked, FIRST, owned)
        assert adopts_orphans()
        (forked,) = begun(asked)
        assert not adopts_orphans()
        link.sendall(b"0")
        assert forked.pid is not None
        os.waitpid(forked.pid, 0)


def adopts_orphans() -> bool:
    found = ctypes.c_int()
    ctypes.CDLL(None).prctl(37, ctypes.byref(found), 0, 0, 0)  # PR_GET_CHILD_SUBREAPER
    return bool(found.value)


def test_copies_neither_need_nor_notice_their_servers_end_and_the_next_gets_a_new_one() -> None:
    with server() as asked, ExitStack() as owned:
        first = ask(asked, FIRST, owned)
        (one,) = begun(asked)
        assert one.pid is not None
        first.recv(100)
        killed = asked.pid
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        assert begun(asked) == []
        assert asked.control is None
        second = ask(asked, SECOND, owned)
        (other,) = begun(asked)
        assert other.pid is not None
        assert asked.pid not in (None, killed)
        for link, pid in ((first, one.pid), (second, other.pid)):
            link.sendall(b"0")
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_what_cannot_be_imported_is_said_and_nobody_waits_for_it(capfd: pytest.CaptureFixture[str]) -> None:
    with server("tests.controller.absent") as asked, ExitStack() as owned:
        ask(asked, FIRST, owned)
        ask(asked, SECOND, owned)
        assert begun(asked) == [Forked(trainer=FIRST, pid=None), Forked(trainer=SECOND, pid=None)]
    assert "tests.controller.absent cannot be imported" in capfd.readouterr().err


def until(trainers: Trainers, told: Ended | Gone) -> None:
    """Poll until this is told."""
    end_s = time.monotonic() + DEADLINE_S
    while told not in trainers.poll(0.1):
        assert time.monotonic() < end_s, f"{told} was not told within {DEADLINE_S} s"


def children() -> set[str]:
    """The processes that are ours to wait for."""
    return set(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())


@pytest.mark.parametrize("manner", list(Manner))
def test_a_trainer_that_is_to_end_before_it_has_begun_is_gone_at_once(manner: Manner) -> None:
    before = children()
    with nothing_remains(), Path(os.devnull).open() as device:
        trainers = Trainers(
            module=FAKE_TRAINER, environment=ENVIRONMENT, device_fd=device.fileno(), grace_s=DEADLINE_S
        )
        trainers.spawn(FIRST)
        trainers.end(FIRST, manner)
        assert trainers.poll(DEADLINE_S) == [Gone(trainer=FIRST, code=UNSTARTED)]
        trainers.spawn(SECOND)  # is forked after the first, for which nobody waits any more
        while not trainers.pid(SECOND):
            assert all(told.trainer == SECOND for told in trainers.poll(DEADLINE_S))
        assert len(children() - before) == 2, "not just the server and the second"
        trainers.close()


def test_trainers_whose_server_dies_before_they_begin_are_told_as_gone() -> None:
    with Path(os.devnull).open() as device:
        trainers = Trainers(
            module="tests.controller.absent", environment=ENVIRONMENT, device_fd=device.fileno(), grace_s=1.0
        )
        trainers.spawn(FIRST)
        until(trainers, Gone(trainer=FIRST, code=UNSTARTED))
        trainers.close()


def test_what_trainers_are_copies_of_has_one_thread() -> None:
    """Locks that another thread holds at the fork are held for ever in the copy."""
    program = "import os; from indb_tensile.worker import trainer; print(len(os.listdir('/proc/self/task')))"
    environment = ENVIRONMENT | {"OPENBLAS_NUM_THREADS": "1"}
    assert subprocess.check_output([sys.executable, "-c", program], env=environment, text=True) == "1\n"
