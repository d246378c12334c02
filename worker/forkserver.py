"""The fork server: `python -m indb_tensile.worker.forkserver CONTROL_FD [MODULE ...]`.

It imports each module once, those of its arguments first and others when a request names them. For each request it
forks a copy that runs `main() -> int` of the module, with the descriptors that came with the request. The other end,
and the reason for forking, is in indb_tensile/controller/fork_client.py. The server has one thread, has run no torch
operator and opens no files, so a copy behaves like a process that was started afresh.

The service is itself such a copy. Before it starts any thread it forks a server of its own (`nested_fork_server`).
Processes forked from that server are children of the service, and import nothing again.
"""

import gc
import logging
import os
import select
import socket
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import NoReturn

import msgspec

from indb_tensile.controller.fork_client import (
    ANSWER,
    DESCRIPTORS,
    REQUEST_BYTES,
    ForkRequest,
    ForkServer,
    RunningForkServer,
    control_pair,
)
from indb_tensile.controller.parent_death import die_with_parent
from indb_tensile.log import start_log

_FAILED = 70  # exit code of an internal error
_NAME_CHARACTERS = 15  # longest name of a process: TASK_COMM_LEN in linux/sched.h, less the terminating zero

log = logging.getLogger(__name__)


def main() -> int:
    """Fork on each request, until the requesting process closes the socket. Returns the exit code."""
    sys.meta_path.insert(0, _WithoutThreads())
    with socket.socket(fileno=int(sys.argv[1])) as control:
        return _serve(control, sys.argv[2:])


class _WithoutThreads(MetaPathFinder):
    """Lets imports of pyarrow fail as if it were not installed.

    scikit-learn imports pandas where it is installed, and pandas imports pyarrow, which starts a thread. A lock that
    another thread holds at a fork is held for ever in the copy. Nothing that runs in a copy needs pyarrow.
    """

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """Raise the error of a missing module for pyarrow, and leave all others to the next finder."""
        if fullname == "pyarrow":
            raise ModuleNotFoundError(f"No module named {fullname!r} in a fork server", name=fullname)


def nested_fork_server() -> ForkServer:
    """Fork a server from this process, whose copies start in this process's present state.

    If this process already has several threads, a server is started afresh at the first request instead.
    """
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        return ForkServer(os.environ)
    own_end, server_end = control_pair()
    pid = os.fork()
    if not pid:
        code = _FAILED
        try:
            own_end.close()
            code = _serve(server_end)
        finally:
            os._exit(code)
    server_end.close()
    os.setpgid(pid, pid)
    return ForkServer(os.environ, server=RunningForkServer(pid=pid, control=own_end))


def _serve(control: socket.socket, modules: Sequence[str] = ()) -> int:
    die_with_parent()
    start_log("forkserver", force=True)
    _set_process_name("forks")
    gc.freeze()  # imported objects stay: a collection would only write to their pages and so copy them
    for module in modules:
        _load(module)
    parent = os.getppid()
    while True:
        try:
            data, descriptors, _, _ = socket.recv_fds(control, REQUEST_BYTES, DESCRIPTORS)
        except ConnectionResetError:  # the requesting process has ended without reading the last answer
            return 0
        if not data:
            return 0
        request = msgspec.msgpack.decode(data, type=ForkRequest)
        if (run := _load(request.module)) is None:
            return _FAILED
        _fork(request, descriptors, control, parent, run)
        for descriptor in descriptors:
            os.close(descriptor)


def _load(module: str) -> Callable[[], int] | None:
    imported = module in sys.modules
    gc.disable()  # looking for garbage among imported objects takes a fifth of the time of an import, and they stay
    try:
        main_function: Callable[[], int] = import_module(module).main
        if not imported:
            gc.freeze()
    except Exception:
        log.exception("%s cannot be imported", module)
        return None
    finally:
        gc.enable()
    return main_function


def _fork(
    request: ForkRequest, descriptors: list[int], control: socket.socket, parent: int, run: Callable[[], int]
) -> None:
    """Fork twice, so that the copy becomes a child of the requesting process."""
    try:
        middle_pid = os.fork()
        if not middle_pid:
            middle_pidfd = os.pidfd_open(os.getpid())
            if not os.fork():
                _become(request, descriptors, control, parent, middle_pidfd, run)
            os._exit(0)
    except OSError as error:
        log.error("%s could not be forked: %s", request.module, error)  # noqa: TRY400 - no traceback needed
        control.send(ANSWER.pack(request.number, 0))
        if os.getppid() != parent:  # this is the process in the middle
            os._exit(_FAILED)
        return
    os.waitpid(middle_pid, 0)


def _become(
    request: ForkRequest,
    descriptors: list[int],
    control: socket.socket,
    parent: int,
    middle_pidfd: int,
    run: Callable[[], int],
) -> NoReturn:
    """Run as the copy: lead a process group, wait for the new parent, report the process id, and run the module.

    The copy is a child of the requesting process before that process reads the answer.
    """
    code = _FAILED
    try:
        os.setpgid(0, 0)
        select.select([middle_pidfd], [], [])  # once the process in the middle has ended, the copy has its new parent
        os.close(middle_pidfd)
        die_with_parent()
        if os.getppid() == parent:
            _set_process_name(request.module.rpartition(".")[2])
            os.environ |= request.environment
            for name, descriptor in zip(request.descriptors, descriptors, strict=True):
                os.set_inheritable(descriptor, True)  # its child processes may use it as well
                os.environ[name] = str(descriptor)
            control.send(ANSWER.pack(request.number, os.getpid()))
            control.close()
            logging.basicConfig(force=True, handlers=[])  # the module's main sets up its own log
            code = run()
    except Exception:
        log.exception("%s failed", request.module)
    finally:
        logging.shutdown()
        # All results are written by now. A normal exit would take torch apart, which keeps a job's slot for seconds.
        os._exit(code)


def _set_process_name(name: str) -> None:
    """Set the name that ps and top show. The command line stays that of the process it was copied from."""
    Path("/proc/self/comm").write_text(f"tensile {name}"[:_NAME_CHARACTERS])


if __name__ == "__main__":
    sys.exit(main())
