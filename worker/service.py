"""The service: one per controller, for predictions and everything else that needs torch at once.

It listens on a Unix socket, answers nobody but the system user of its own database server, and only requests of
its own database, and dies with its controller. Predictions and evaluations are computed in this process, by one
thread; the rest goes to the analyst, a process beside it, forked from what this one was before it began.
"""

import asyncio
import logging
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import psycopg
import torch

from indb_tensile.catalog import jobs
from indb_tensile.catalog.connection import WORK_LOCK_TIMEOUT_MS, connect
from indb_tensile.catalog.install import VERSION
from indb_tensile.controller.forkserver import ForkServer
from indb_tensile.controller.service import ANSWERING_VARIABLE
from indb_tensile.errors import DatabaseError, TensileError
from indb_tensile.job import ModelVersionId
from indb_tensile.log import start_log

from .forkserver import nursery
from .serving import analyst, settings
from .serving.analyst_process import AnalystProcess
from .serving.answers import Answers
from .serving.batches import Batches
from .serving.endpoint import Endpoint
from .serving.front import Front
from .serving.identity import DatabaseIdentity, Gate, socket_name
from .serving.peer import server_uid, user_name
from .serving.processes import die_with_parent
from .serving.requests import greeting
from .serving.residents import Resident, Residents
from .serving.server import Server
from .serving.settings import ServiceSettings
from .serving.store import Loaded, Store

_LOADS = 4  # at once: a version that takes long, or waits for a lock, holds up no other user's
_GRACE_S = 3.0  # for requests in work when the service is told to stop

_log = logging.getLogger("service")


def main() -> int:
    """Serve until told to stop; return the exit code."""
    try:
        mine = settings.load(os.environ)
        start_log("service", mine.shared.log_level.upper())
        die_with_parent(signal.SIGTERM)
        with closing(nursery()) as forks:  # while this process is as it was forked
            torch.set_num_threads(mine.shared.threads)
            with Store(mine.shared.dsn, "service", mine.shared.device, mine.shared.threads) as store:
                asyncio.run(_serve(mine, store, forks))
    except TensileError as error:
        print(f"tensile service: {error.message}", file=sys.stderr)  # noqa: T201 - what a person reads
        for more in filter(None, (error.detail, error.hint)):
            print(f"  {more}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    return 0


async def _serve(mine: ServiceSettings, store: Store, forks: ForkServer) -> None:
    told = _told_to_stop()
    uid = mine.peer_uid if mine.peer_uid is not None else store.session.run(server_uid)
    own = store.identity()
    name = socket_name(own.installation, mine.worker)
    second, batches, loader = AnalystProcess(forks, analyst.__name__), Batches(), _Loader(mine)
    front = Front(
        gate=Gate(own, lambda: _identity(store)),
        residents=Residents(loader.load, mine.resident_bytes),
        batches=batches,
        analyst=second,
        code_version=VERSION,
    )
    endpoint = Endpoint(mine.directory, name)
    server = Server(
        endpoint,
        allowed_uid=uid,
        greeting=greeting(own.installation, VERSION),
        handle=front.handle,
        forget=front.forget,
    )
    try:
        await server.start()
        store.session.run(lambda connection: jobs.announce_service(connection, mine.worker, name))
        _say_that_it_answers()
        _log.info("answering system user %s on %s", user_name(uid), endpoint.path)
        await second.start()
        await told.wait()
    finally:
        await server.stop(_GRACE_S)
        second.stop()
        batches.close()
        front.close()
        loader.close()
        _withdraw(mine)


async def _identity(store: Store) -> DatabaseIdentity:
    """Who the database is now; not on the event loop, since the database may be starting."""
    return await asyncio.get_running_loop().run_in_executor(None, store.identity)


class _Loader:
    """Loads versions on threads of its own, each with a connection of its own, while predictions go on."""

    def __init__(self, mine: ServiceSettings) -> None:
        self._mine = mine
        self._executor = ThreadPoolExecutor(max_workers=_LOADS, thread_name_prefix="loader")
        self._own = threading.local()
        self._stores: list[Store] = []

    async def load(self, version: ModelVersionId) -> Resident:
        """The version, ready to predict."""
        loaded = await asyncio.get_running_loop().run_in_executor(self._executor, self._load, version)
        return Resident(model=Answers(loaded.predictor), size_bytes=loaded.size_bytes, owner=loaded.owner_oid)

    def close(self) -> None:
        """End the threads and their connections."""
        self._executor.shutdown(cancel_futures=True)
        for store in self._stores:
            store.close()

    def _load(self, version: ModelVersionId) -> Loaded:
        if not hasattr(self._own, "store"):
            self._own.store = Store(
                self._mine.shared.dsn, "service loader", self._mine.shared.device, self._mine.shared.threads
            )
            self._stores.append(self._own.store)
        store: Store = self._own.store
        return store.load(version)


def _say_that_it_answers() -> None:
    """Tell the controller, where one has started us."""
    descriptor = os.environ.get(ANSWERING_VARIABLE)
    if descriptor is not None:
        with suppress(OSError):
            os.write(int(descriptor), b"1")
            os.close(int(descriptor))


def _withdraw(mine: ServiceSettings) -> None:
    """Say that no service answers; where the database is gone too, nobody is there to be told."""
    with (
        suppress(DatabaseError, psycopg.Error),
        connect(mine.shared.dsn, application_name="tensile service", lock_timeout_ms=WORK_LOCK_TIMEOUT_MS) as last,
    ):
        jobs.announce_service(last, mine.worker, None)


def _told_to_stop() -> asyncio.Event:
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    return told


if __name__ == "__main__":
    raise SystemExit(main())
