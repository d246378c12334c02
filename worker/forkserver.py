"""The process that others are forked from: `python -m indb_tensile.worker.forkserver MODULE CONTROL_FD`.

It imports the module once; each copy runs the module's `main() -> int` with descriptors that came with the
request (indb_tensile/controller/forkserver.py has the other end, and the reason). It has one thread, no torch
operator has run in it, and it opens nothing: so a copy is as good as a process started anew.
"""

import gc
import logging
import os
import select
import socket
import sys
from collections.abc import Callable
from importlib import import_module
from typing import NoReturn

from indb_tensile.config import Inheritance
from indb_tensile.controller.forkserver import ANSWER, REQUEST

from .serving.processes import die_with_parent

_FAILED = 70  # exit code of a fault of ours

log = logging.getLogger("trainer")


def main() -> int:
    """Fork whenever asked; end with the controller."""
    logging.basicConfig(format="%(asctime)s forkserver[%(process)d] %(levelname)s %(message)s", level=logging.INFO)
    die_with_parent()
    controller_pid = os.getppid()
    run = _load(sys.argv[1])
    if run is None:
        return _FAILED
    gc.freeze()  # what is imported stays: collecting it would only copy its pages
    with socket.socket(fileno=int(sys.argv[2])) as control:
        while True:
            request, descriptors, _, _ = socket.recv_fds(control, REQUEST.size, 3)
            if not request:
                return 0
            (trainer,) = REQUEST.unpack(request)
            _fork(trainer, descriptors, control, controller_pid, run)
            for descriptor in descriptors:
                os.close(descriptor)


def _load(module: str) -> Callable[[], int] | None:
    try:
        found: Callable[[], int] = import_module(module).main
    except Exception:
        log.exception("%s cannot be imported", module)
        return None
    return found


def _fork(
    trainer: int, descriptors: list[int], control: socket.socket, controller_pid: int, run: Callable[[], int]
) -> None:
    """Fork twice, so that the copy becomes the controller's child."""
    try:
        between = os.fork()
        if not between:
            over = os.pidfd_open(os.getpid())
            if not os.fork():
                _become(trainer, descriptors, control, controller_pid, over, run)
            os._exit(0)
    except OSError as error:
        log.error("trainer %s could not be forked: %s", trainer, error)  # noqa: TRY400 - one line says it all
        control.send(ANSWER.pack(trainer, 0))
        if os.getppid() != controller_pid:  # the process between
            os._exit(_FAILED)
        return
    os.waitpid(between, 0)


def _become(
    trainer: int,
    descriptors: list[int],
    control: socket.socket,
    controller_pid: int,
    over: int,
    run: Callable[[], int],
) -> NoReturn:
    """Be the trainer: of a group of one's own, and the controller's child, before it hears of it."""
    code = _FAILED
    try:
        os.setpgid(0, 0)
        select.select([over], [], [])  # once the process between has ended, its child has its new parent
        os.close(over)
        if os.getppid() == controller_pid:
            link_fd, life_fd, *regions = descriptors
            os.set_inheritable(life_fd, True)  # whatever it starts may write to its memory as well
            os.environ |= Inheritance(
                link_fd=link_fd,
                device_fd=int(os.environ["TENSILE_DEVICE_FD"]),
                regions_fd=regions[0] if regions else None,
            ).environment()
            control.send(ANSWER.pack(trainer, os.getpid()))
            control.close()
            _forget_logging()
            code = run()
    except Exception:
        log.exception("trainer %s failed", trainer)
    finally:
        logging.shutdown()
        # Everything is given back and written by now; taking torch apart would hold the slot for seconds.
        os._exit(code)


def _forget_logging() -> None:
    """Its own main sets up its own."""
    root = logging.getLogger()
    for handler in tuple(root.handlers):
        root.removeHandler(handler)


if __name__ == "__main__":
    sys.exit(main())
