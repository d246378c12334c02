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
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from indb_tensile.config import InheritedDescriptors
from indb_tensile.controller.fork_client import ForkedProcess, ForkServer
from indb_tensile.controller.trainers import UNSTARTED, ProcessEnded, TrainerGone, Trainers
from indb_tensile.scheduler.admission.admission_orders import EndMethod
from indb_tensile.scheduler.admission.events import ExitCause
from indb_tensile.scheduler.admission.pool import TrainerId
from tests.controller.fakes import DEADLINE_S, FAKE_TRAINER, children
from tests.remains import nothing_remains

FIRST, SECOND = TrainerId(1), TrainerId(2)
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


MODULE = "tests.controller.forked"


@contextmanager
def server() -> Iterator[ForkServer]:
    with closing(ForkServer(ENVIRONMENT)) as made:
        yield made


def ask(asked: ForkServer, owned: ExitStack, module: str = MODULE) -> tuple[ForkedProcess, socket.socket]:
    """Have one forked; our end of its link."""
    ours, theirs = socket.socketpair()
    owned.enter_context(ours)
    with theirs, Path(os.devnull).open() as device:
        inherited = InheritedDescriptors(link_fd=theirs.fileno(), device_fd=device.fileno())
        return asked.ask(module, descriptors=inherited.descriptors), ours


def hear(asked: ForkServer) -> None:
    """What it says next."""
    assert select.select([asked.fileno()], [], [], DEADLINE_S)[0], f"no answer within {DEADLINE_S} s"
    asked.receive()


def test_a_copy_is_our_own_child_in_a_group_of_its_own_with_one_thread_and_what_it_was_given() -> None:
    with server() as asked, ExitStack() as owned:
        copy, link = ask(asked, owned)
        hear(asked)
        own = os.getpid()
        assert (
            link.recv(100).decode() == f"{copy.pid} {own} {copy.pid} 1 {len(('in', 'out', 'err', 'link', 'device'))}"
        )
        assert Path(f"/proc/{copy.pid}/comm").read_text() == "tensile forked\n"
        link.sendall(b"7")
        assert copy.ended(DEADLINE_S)
        assert copy.reap() == 7


DEAF = f"""
import os, select, socket
from indb_tensile.controller.fork_client import ForkServer
server, (ours, theirs) = ForkServer(os.environ), socket.socketpair()
descriptors = dict.fromkeys(("TENSILE_LINK_FD", "TENSILE_DEVICE_FD"), theirs.fileno())
copy = server.ask("{MODULE}", descriptors=descriptors)
theirs.close()
ours.recv(100)
select.select([server.fileno()], [], [])
pid = server.pid
server._server.control.close()
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_server_ends_in_silence_with_who_asked_though_that_has_not_heard_its_last_answer() -> None:
    done = subprocess.run(
        (sys.executable, "-c", DEAF),
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


def test_other_orphans_are_not_adopted_once_all_who_were_asked_for_have_begun() -> None:
    """Nobody would wait for them."""
    with server() as asked, ExitStack() as owned:
        copy, _ = ask(asked, owned)
        assert adopts_orphans()
        hear(asked)
        assert not adopts_orphans()
        copy.reap()


def adopts_orphans() -> bool:
    found = ctypes.c_int()
    ctypes.CDLL(None).prctl(37, ctypes.byref(found), 0, 0, 0)  # PR_GET_CHILD_SUBREAPER
    return bool(found.value)


def test_copies_neither_need_nor_notice_their_servers_end_and_the_next_gets_a_new_one() -> None:
    with server() as asked, ExitStack() as owned:
        one, first = ask(asked, owned)
        hear(asked)
        first.recv(100)
        killed = asked.pid
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        hear(asked)
        assert asked.pid is None
        other, second = ask(asked, owned)
        hear(asked)
        assert asked.pid not in (None, killed)
        for link, copy in ((first, one), (second, other)):
            link.sendall(b"0")
            assert copy.ended(DEADLINE_S)
            assert copy.reap() == 0


def test_what_cannot_be_imported_is_said_and_nobody_waits_for_it(capfd: pytest.CaptureFixture[str]) -> None:
    with server() as asked, ExitStack() as owned:
        copies = [ask(asked, owned, "tests.controller.absent")[0] for _ in range(2)]
        hear(asked)
        assert copies == [ForkedProcess(failed=True), ForkedProcess(failed=True)]
    assert "tests.controller.absent cannot be imported" in capfd.readouterr().err


def test_one_that_is_not_wanted_any_more_ends_whether_it_has_begun_or_not() -> None:
    before = children()
    with server() as asked, ExitStack() as owned:
        for heard_first in (True, False):
            copy, _ = ask(asked, owned)
            if heard_first:
                hear(asked)
            copy.abandon()
            if not heard_first:
                hear(asked)
            assert children() - before == {asked.pid}


NURSERY = """
import os, signal, threading
from indb_tensile.worker.forkserver import nursery
from tests.controller import forked

def code_of_one():
    copy = forks.ask(forked.__name__, descriptors={})
    while copy.pid is None:
        forks.receive()
    assert copy.ended(20.0)
    return copy.reap()

forked.main = lambda: 5  # as nobody else has it
forks = nursery()
print(code_of_one())
os.kill(forks.pid, signal.SIGKILL)
os.waitid(os.P_PID, forks.pid, os.WEXITED | os.WNOWAIT)
print(code_of_one())
forks.close()
over = threading.Event()
threading.Thread(target=over.wait).start()
forks = nursery()
print(forks.pid)
forks.close()
over.set()
"""


def test_a_nursery_forks_copies_of_the_process_itself_and_where_it_cannot_of_one_started_anew() -> None:
    failed = 70  # what is started anew knows the real main, which misses its link
    told = subprocess.check_output([sys.executable, "-c", NURSERY], env=ENVIRONMENT, text=True, timeout=DEADLINE_S)
    assert told == f"5\n{failed}\nNone\n"


def until(trainers: Trainers, told: ProcessEnded | TrainerGone) -> None:
    """Poll until this is told."""
    end_s = time.monotonic() + DEADLINE_S
    while told not in trainers.poll(0.1):
        assert time.monotonic() < end_s, f"{told} was not told within {DEADLINE_S} s"


@contextmanager
def trainers_of(forks: ForkServer, module: str) -> Iterator[Trainers]:
    with Path(os.devnull).open() as device:
        made = Trainers(forks=forks, module=module, device_fd=device.fileno(), grace_s=DEADLINE_S)
        try:
            yield made
        finally:
            made.close()


@pytest.mark.parametrize("method", list(EndMethod))
def test_a_trainer_that_is_to_end_before_it_has_begun_is_gone_at_once(method: EndMethod) -> None:
    before = children()
    with nothing_remains(), server() as forks, trainers_of(forks, FAKE_TRAINER) as trainers:
        trainers.spawn(FIRST)
        trainers.end(FIRST, method)
        assert trainers.poll(DEADLINE_S) == [TrainerGone(trainer=FIRST, code=UNSTARTED, ending=ExitCause.STOPPED)]
        # It is forked after the first, for which nobody waits any more, but may be heard of before.
        trainers.spawn(SECOND)
        end_s = time.monotonic() + DEADLINE_S
        while not trainers.pid(SECOND) or len(children() - before) != 2:
            assert time.monotonic() < end_s, "not just the server and the second"
            assert all(told.trainer == SECOND for told in trainers.poll(0.1))


def test_trainers_whose_server_dies_before_they_begin_are_told_as_gone() -> None:
    with server() as forks, trainers_of(forks, "tests.controller.absent") as trainers:
        trainers.spawn(FIRST)
        until(trainers, TrainerGone(trainer=FIRST, code=UNSTARTED, ending=ExitCause.STOPPED))


def test_what_trainers_and_the_service_are_copies_of_has_one_thread() -> None:
    """Locks that another thread holds at the fork are held for ever in the copy."""
    program = "import os; from indb_tensile.worker import service, trainer; print(len(os.listdir('/proc/self/task')))"
    environment = ENVIRONMENT | {"OPENBLAS_NUM_THREADS": "1"}
    assert subprocess.check_output([sys.executable, "-c", program], env=environment, text=True) == "1\n"
