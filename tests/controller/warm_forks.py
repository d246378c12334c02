"""Fork servers that start in milliseconds: copies of one server, which has imported the fake processes.

A fork server takes a quarter of a second of a processor to start and to import a fake trainer, and a hundred tests
need one. With the variable SUITE_PLAIN_SESSIONS, which tests/nightly.sh sets, each test starts a server of its own.
"""

import atexit
import os
import select
import socket
import sys
from collections.abc import Mapping
from functools import cache

from indb_tensile.controller.fork_client import ForkServer, RunningForkServer, control_pair
from tests.compiled_bridge import PLAIN
from worker import forkserver

_CONTROL = "WARM_FORKS_FD"
_PREPARED = ("fake_trainer", "fake_service", "fake_learner")
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


def fork_server(environment: Mapping[str, str]) -> ForkServer:
    """Return a fork server whose processes have this environment. One thread of the process may call this."""
    if os.environ.get(PLAIN):
        return ForkServer(environment)
    own_end, server_end = control_pair()
    with server_end:
        copy = _mother().ask(__name__, environment=environment, descriptors={_CONTROL: server_end.fileno()})
    while copy.pid is None:
        assert not copy.failed, "the server of all tests has ended"
        select.select([_mother()], [], [])
        _mother().receive()
    return ForkServer(environment, server=RunningForkServer(pid=copy.pid, control=own_end))


@cache
def _mother() -> ForkServer:
    server = ForkServer(ENVIRONMENT, (__name__, *(f"tests.controller.{name}" for name in _PREPARED)))
    atexit.register(server.close)
    return server


def main() -> int:
    """Be a fork server, in a copy that was asked for."""
    with socket.socket(fileno=int(os.environ.pop(_CONTROL))) as control:
        return forkserver._serve(control)
