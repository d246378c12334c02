"""The service: one per controller, for predictions and everything else that needs torch at once.

It listens on a Unix socket, answers nobody but the system user of its own database server, and dies with its
controller. Predictions are computed in this process, by one thread; the rest goes to the analyst, a process
beside it, forked from what this one was before it began.
"""

import asyncio
import logging
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import psycopg
import torch

from indb_tensile.catalog import jobs
from indb_tensile.catalog.connection import connect
from indb_tensile.catalog.install import VERSION
from indb_tensile.controller.forkserver import ForkServer
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
from .serving.peer import server_uid, user_name
from .serving.processes import die_with_parent
from .serving.residents import Load, Resident, Residents
from .serving.server import Server
from .serving.settings import ServiceSettings
from .serving.store import Store

_GRACE_S = 3.0  # for requests in work when the service is told to stop

_log = logging.getLogger("service")


def main() -> int:
    """Serve until told to stop; return the exit code."""
    try:
        mine = settings.load(os.environ)
        start_log("service", mine.shared.log_level.upper())
        die_with_parent(signal.SIGTERM)
        with closing(nursery()) as forks:  # while this process is as it was forked
            torch.set_num_threads(mine.shared.torch_threads)
            with Store(mine.shared.dsn, "service", mine.shared.device) as store:
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
    second, batches = AnalystProcess(forks, analyst.__name__), Batches()
    front = Front(
        residents=Residents(_loader(store), mine.resident_bytes),
        batches=batches,
        analyst=second,
        code_version=VERSION,
    )
    endpoint = Endpoint(mine.directory, mine.name)
    server = Server(endpoint, allowed_uid=uid, handle=front.handle)
    try:
        await server.start()
        store.session.run(lambda connection: jobs.announce_service(connection, mine.worker, mine.name))
        _log.info("answering system user %s on %s", user_name(uid), endpoint.path)
        await second.start()
        await told.wait()
    finally:
        await server.stop(_GRACE_S)
        second.stop()
        batches.close()
        _withdraw(mine)


def _loader(store: Store) -> Load:
    """Loads on a thread of its own, one version at a time, while predictions go on."""
    executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="loader")

    async def load(version: ModelVersionId) -> Resident:
        loaded = await asyncio.get_running_loop().run_in_executor(executor, store.load, version)
        return Resident(model=Answers(loaded.predictor), size_bytes=loaded.size_bytes)

    return load


def _withdraw(mine: ServiceSettings) -> None:
    """Say that no service answers; where the database is gone too, nobody is there to be told."""
    with suppress(DatabaseError, psycopg.Error), connect(mine.shared.dsn, application_name="tensile service") as last:
        jobs.announce_service(last, mine.worker, None)


def _told_to_stop() -> asyncio.Event:
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    return told


if __name__ == "__main__":
    raise SystemExit(main())
