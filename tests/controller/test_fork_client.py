"""Check that the fork server starts processes, and that they outlive it, with real processes."""

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
def fork_server() -> Iterator[ForkServer]:
    with closing(ForkServer(ENVIRONMENT)) as forks:
        yield forks


def fork_copy(forks: ForkServer, stack: ExitStack, module: str = MODULE) -> tuple[ForkedProcess, socket.socket]:
    """Request a forked process; return it and the test's end of its link."""
    ours, theirs = socket.socketpair()
    stack.enter_context(ours)
    with theirs, Path(os.devnull).open() as device:
        inherited = InheritedDescriptors(link_fd=theirs.fileno(), device_fd=device.fileno())
        return forks.ask(module, descriptors=inherited.descriptors), ours


def receive_reply(forks: ForkServer) -> None:
    """Wait for the fork server's next reply and handle it."""
    assert select.select([forks.fileno()], [], [], DEADLINE_S)[0], f"no answer within {DEADLINE_S} s"
    forks.receive()


def test_forked_process_is_a_child_in_its_own_group_with_one_thread_and_the_given_descriptors() -> None:
    with fork_server() as forks, ExitStack() as stack:
        copy, link = fork_copy(forks, stack)
        receive_reply(forks)
        descriptors = len(("in", "out", "err", "link", "device"))
        assert link.recv(100).decode() == f"{copy.pid} {os.getpid()} {copy.pid} 1 {descriptors}"
        assert Path(f"/proc/{copy.pid}/comm").read_text() == "tensile forked\n"
        link.sendall(b"7")
        assert copy.ended(DEADLINE_S)
        assert copy.reap() == 7


UNREAD_REPLY = f"""
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


def test_fork_server_ends_silently_with_its_client_though_its_last_reply_is_unread() -> None:
    done = subprocess.run(
        (sys.executable, "-c", UNREAD_REPLY),
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


def test_client_adopts_no_orphans_after_all_requested_processes_have_started() -> None:
    """The client would never wait for an orphan that it did not request, which would stay a zombie."""
    with fork_server() as forks, ExitStack() as stack:
        copy, _ = fork_copy(forks, stack)
        assert adopts_orphans()
        receive_reply(forks)
        assert not adopts_orphans()
        copy.reap()


def adopts_orphans() -> bool:
    subreaper = ctypes.c_int()
    ctypes.CDLL(None).prctl(37, ctypes.byref(subreaper), 0, 0, 0)  # PR_GET_CHILD_SUBREAPER
    return bool(subreaper.value)


def test_forked_processes_survive_their_fork_server_and_the_next_process_gets_a_new_server() -> None:
    with fork_server() as forks, ExitStack() as stack:
        first_copy, first_link = fork_copy(forks, stack)
        receive_reply(forks)
        first_link.recv(100)
        killed = forks.pid
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        receive_reply(forks)
        assert forks.pid is None
        second_copy, second_link = fork_copy(forks, stack)
        receive_reply(forks)
        assert forks.pid not in (None, killed)
        for link, copy in ((first_link, first_copy), (second_link, second_copy)):
            link.sendall(b"0")
            assert copy.ended(DEADLINE_S)
            assert copy.reap() == 0


def test_failed_import_is_logged_and_the_requested_processes_have_failed(capfd: pytest.CaptureFixture[str]) -> None:
    with fork_server() as forks, ExitStack() as stack:
        copies = [fork_copy(forks, stack, "tests.controller.absent")[0] for _ in range(2)]
        receive_reply(forks)
        assert copies == [ForkedProcess(failed=True), ForkedProcess(failed=True)]
    assert "tests.controller.absent cannot be imported" in capfd.readouterr().err


def test_abandoned_process_ends_whether_or_not_it_has_started() -> None:
    before = children()
    with fork_server() as forks, ExitStack() as stack:
        for started in (True, False):
            copy, _ = fork_copy(forks, stack)
            if started:
                receive_reply(forks)
            copy.abandon()
            if not started:
                receive_reply(forks)
            assert children() - before == {forks.pid}


NURSERY = """
import os, signal, threading
from indb_tensile.worker.forkserver import nested_fork_server
from tests.controller import forked

def exit_code_of_copy():
    copy = forks.ask(forked.__name__, descriptors={})
    while copy.pid is None:
        forks.receive()
    assert copy.ended(20.0)
    return copy.reap()

forked.main = lambda: 5  # only this process has this function
forks = nested_fork_server()
print(exit_code_of_copy())
os.kill(forks.pid, signal.SIGKILL)
os.waitid(os.P_PID, forks.pid, os.WEXITED | os.WNOWAIT)
print(exit_code_of_copy())
forks.close()
over = threading.Event()
threading.Thread(target=over.wait).start()
forks = nested_fork_server()
print(forks.pid)
forks.close()
over.set()
"""


def test_nested_server_forks_its_own_process_and_falls_back_to_a_new_server() -> None:
    failed = 70  # a new server runs the real `main`, which fails without its link
    output = subprocess.check_output([sys.executable, "-c", NURSERY], env=ENVIRONMENT, text=True, timeout=DEADLINE_S)
    assert output == f"5\n{failed}\nNone\n"


def poll_until(trainers: Trainers, event: ProcessEnded | TrainerGone) -> None:
    """Poll the trainers until they report this event."""
    end_s = time.monotonic() + DEADLINE_S
    while event not in trainers.poll(0.1):
        assert time.monotonic() < end_s, f"{event} was not reported within {DEADLINE_S} s"


@contextmanager
def running_trainers(forks: ForkServer, module: str) -> Iterator[Trainers]:
    with Path(os.devnull).open() as device:
        trainers = Trainers(forks=forks, module=module, device_fd=device.fileno(), grace_s=DEADLINE_S)
        try:
            yield trainers
        finally:
            trainers.close()


@pytest.mark.by_day("terminate")
@pytest.mark.parametrize("end_method", list(EndMethod))
def test_trainer_that_is_ended_before_it_starts_is_gone_at_once(end_method: EndMethod) -> None:
    before = children()
    with nothing_remains(), fork_server() as forks, running_trainers(forks, FAKE_TRAINER) as trainers:
        trainers.spawn(FIRST)
        trainers.end(FIRST, end_method)
        assert trainers.poll(DEADLINE_S) == [TrainerGone(trainer=FIRST, code=UNSTARTED, ending=ExitCause.STOPPED)]
        # The second trainer is forked after the first, but its start may be reported before the first has ended.
        trainers.spawn(SECOND)
        end_s = time.monotonic() + DEADLINE_S
        while not trainers.pid(SECOND) or len(children() - before) != 2:
            assert time.monotonic() < end_s, "more processes than the fork server and the second trainer"
            assert all(event.trainer == SECOND for event in trainers.poll(0.1))


def test_trainer_whose_fork_server_dies_before_it_starts_is_reported_as_gone() -> None:
    with fork_server() as forks, running_trainers(forks, "tests.controller.absent") as trainers:
        trainers.spawn(FIRST)
        poll_until(trainers, TrainerGone(trainer=FIRST, code=UNSTARTED, ending=ExitCause.STOPPED))
