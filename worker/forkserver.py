"""The process that others are forked from: `python -m indb_tensile.worker.forkserver CONTROL_FD [MODULE ...]`.

It imports these, and what a request names, once, and forks a copy that runs its `main() -> int` with descriptors
that came with the request (indb_tensile/controller/forkserver.py has the other end, and the reason). It has one
thread, no torch operator has run in it, and it opens nothing: so a copy is as good as a process started anew.

The service, such a copy itself, has another one forked from it before it starts any thread: whatever is forked from
that is the service's child, and nothing is imported again.
"""

import gc
import logging
import os
import select
import socket
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import msgspec

from indb_tensile.controller.forkserver import (
    ANSWER,
    DESCRIPTORS,
    REQUEST_BYTES,
    ForkServer,
    Request,
    Server,
    control_pair,
)
from indb_tensile.log import start_log

from .serving.processes import die_with_parent

_FAILED = 70  # exit code of a fault of ours
_NAME_CHARACTERS = 15  # of a process: TASK_COMM_LEN in linux/sched.h, less the zero

log = logging.getLogger(__name__)


def main() -> int:
    """Fork whenever asked; end with the process that asks."""
    with socket.socket(fileno=int(sys.argv[1])) as control:
        return _serve(control, sys.argv[2:])


def nursery() -> ForkServer:
    """Copies of this process as it is now. Where it has threads, of one that is started anew when it is asked."""
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        return ForkServer(os.environ)
    ours, theirs = control_pair()
    pid = os.fork()
    if not pid:
        code = _FAILED
        try:
            ours.close()
            code = _serve(theirs)
        finally:
            os._exit(code)
    theirs.close()
    os.setpgid(pid, pid)
    return ForkServer(os.environ, server=Server(pid=pid, control=ours))


def _serve(control: socket.socket, modules: Sequence[str] = ()) -> int:
    die_with_parent()
    start_log("forkserver", force=True)
    _call_oneself("forks")
    gc.freeze()  # what is imported stays: collecting it would only copy its pages
    for module in modules:
        _load(module)
    parent = os.getppid()
    while True:
        try:
            data, descriptors, _, _ = socket.recv_fds(control, REQUEST_BYTES, DESCRIPTORS)
        except ConnectionResetError:  # whoever asked has ended, and had not heard the last answer
            return 0
        if not data:
            return 0
        request = msgspec.msgpack.decode(data, type=Request)
        if (run := _load(request.module)) is None:
            return _FAILED
        _fork(request, descriptors, control, parent, run)
        for descriptor in descriptors:
            os.close(descriptor)


def _load(module: str) -> Callable[[], int] | None:
    known = module in sys.modules
    try:
        found: Callable[[], int] = import_module(module).main
    except Exception:
        log.exception("%s cannot be imported", module)
        return None
    if not known:
        gc.freeze()
    return found


def _fork(
    request: Request, descriptors: list[int], control: socket.socket, parent: int, run: Callable[[], int]
) -> None:
    """Fork twice, so that the copy becomes the parent's child."""
    try:
        between = os.fork()
        if not between:
            over = os.pidfd_open(os.getpid())
            if not os.fork():
                _become(request, descriptors, control, parent, over, run)
            os._exit(0)
    except OSError as error:
        log.error("%s could not be forked: %s", request.module, error)  # noqa: TRY400 - one line says it all
        control.send(ANSWER.pack(request.number, 0))
        if os.getppid() != parent:  # the process between
            os._exit(_FAILED)
        return
    os.waitpid(between, 0)


def _become(
    request: Request,
    descriptors: list[int],
    control: socket.socket,
    parent: int,
    over: int,
    run: Callable[[], int],
) -> NoReturn:
    """Be the copy: of a group of one's own, and the child of who asked, before it hears of it."""
    code = _FAILED
    try:
        os.setpgid(0, 0)
        select.select([over], [], [])  # once the process between has ended, its child has its new parent
        os.close(over)
        die_with_parent()
        if os.getppid() == parent:
            _call_oneself(request.module.rpartition(".")[2])
            os.environ |= request.environment
            for name, descriptor in zip(request.descriptors, descriptors, strict=True):
                os.set_inheritable(descriptor, True)  # whatever it starts may have it as well
                os.environ[name] = str(descriptor)
            control.send(ANSWER.pack(request.number, os.getpid()))
            control.close()
            logging.basicConfig(force=True, handlers=[])  # its own main sets up its own
            code = run()
    except Exception:
        log.exception("%s failed", request.module)
    finally:
        logging.shutdown()
        # Everything is given back and written by now; taking torch apart would hold a job's slot for seconds.
        os._exit(code)


def _call_oneself(name: str) -> None:
    """What ps and top show: the command line stays that of the process it was copied from."""
    Path("/proc/self/comm").write_text(f"tensile {name}"[:_NAME_CHARACTERS])


if __name__ == "__main__":
    sys.exit(main())
