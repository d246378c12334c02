"""The service's process, one per controller: answers predictions and other requests that need torch.

The process answers only its own database, and ends with its controller. On a Unix socket it answers the system user
of a database server of this host, and on a TCP address database servers of other hosts, by TLS. On a hot standby, an
administrator starts a service that only reads (serving/standby.py). One thread of the process computes predictions
and evaluations. Other requests go to the analyst (serving/analyst.py), a second process: a fork server that was
forked before this process started any thread forks it.
"""

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from socket import gethostname
from typing import Any, NamedTuple

import psycopg
import torch

from indb_tensile.catalog import jobs
from indb_tensile.catalog.connection import WORK_LOCK_TIMEOUT_MS, connect
from indb_tensile.catalog.count_batches import CountBatch, store_batch
from indb_tensile.catalog.install import VERSION
from indb_tensile.catalog.reader_connection import reader_dsn
from indb_tensile.config import split_address
from indb_tensile.controller.fork_client import ForkServer
from indb_tensile.controller.parent_death import die_with_parent
from indb_tensile.controller.service_certificates import ServiceCertificates, validity
from indb_tensile.controller.service_process import ANSWERING_VARIABLE
from indb_tensile.errors import DatabaseError, TensileError
from indb_tensile.job import ModelVersionId, WorkerId
from indb_tensile.learning.evaluation.input_bins import InputBins, read_bins
from indb_tensile.log import start_log

from .forkserver import nested_fork_server
from .serving import analyst, settings
from .serving.analyst_process import AnalystProcess
from .serving.answers import Answers
from .serving.count_sender import CountSender
from .serving.dispatch import RequestDispatcher
from .serving.endpoint import Endpoint
from .serving.identity import DatabaseIdentity, IdentityCheck, socket_name, standby_socket_name
from .serving.input_counts import InputCounts
from .serving.model_cache import CachedModel, ModelCache
from .serving.peer import server_uid, user_name
from .serving.prediction_batches import Batches
from .serving.primary_counts import PrimaryCounts
from .serving.requests import greeting
from .serving.server import Server
from .serving.settings import ServiceSettings
from .serving.standby import NoAnalyst, standby_directory
from .serving.store import Loaded, Store
from .serving.table_readings import TableReadings
from .serving.tls_listener import TlsListener

# Versions that load at the same time, so that a version that loads slowly or waits for a lock delays no other user.
_LOADER_THREADS = 4
_COUNTS_S = 5.0  # time between two additions to the counters of predictions in the catalog
_GRACE_S = 3.0  # time for requests in progress when the service is stopped

_log = logging.getLogger("service")


def main() -> int:
    """Serve until stopped. Returns the exit code."""
    try:
        options = settings.load(os.environ)
        start_log("service", options.shared.log_level.upper())
        if options.worker is not None:
            die_with_parent(signal.SIGTERM)
        with closing(nested_fork_server()) as forks:  # before this process starts any thread
            torch.set_num_threads(options.shared.threads)
            with Store(options.shared.dsn, "service", options.shared.device, options.shared.threads) as store:
                asyncio.run(_serve(options, store, forks))
    except TensileError as error:
        print(f"tensile service: {error.message}", file=sys.stderr)  # noqa: T201 - for a person who started the service
        for line in filter(None, (error.detail, error.hint)):
            print(f"  {line}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    return 0


async def _serve(options: ServiceSettings, store: Store, forks: ForkServer) -> None:
    stop_requested = _stop_event()
    identity = store.identity()
    place = _place(options, store, identity.installation)
    uid = None if place is None else _peer_uid(options, store)
    analyst_process = NoAnalyst() if options.worker is None else AnalystProcess(forks, analyst.__name__)
    batches, loader = Batches(), _Loader(options)
    inputs = InputCounts(loader.load_bins)
    dispatcher = RequestDispatcher(
        gate=IdentityCheck(identity, lambda: _identity(store)),
        residents=ModelCache(loader.load, options.resident_bytes),
        batches=batches,
        analyst=analyst_process,
        readings=TableReadings(lambda: reader_dsn(options.shared)),
        inputs=inputs,
        code_version=VERSION,
    )
    primary = PrimaryCounts(options.primary_dsn, identity.installation) if options.primary_dsn else None
    sender = CountSender(
        f"standby {gethostname()} {place.name}" if place and options.worker is None else f"worker {options.worker}",
        dispatcher.counts,
        inputs,
    )
    store_counts = None if options.worker is None else loader.store
    if primary is not None:
        store_counts = primary.store
    remote = _listener(options)
    endpoint = None if place is None else Endpoint(place.directory, place.name)
    server = Server(
        endpoint,
        allowed_uid=uid,
        greeting=greeting(identity.installation, VERSION),
        handle=dispatcher.handle,
        handle_at_once=dispatcher.handle_at_once,
        forget=dispatcher.forget,
        remote=remote,
    )
    announced = jobs.ServicePlace(
        name=place.name if place is not None else None,
        address=remote.address if remote is not None else None,
        host_name=options.host_name if remote is not None else None,
    )
    try:
        await server.start()
        if (worker := options.worker) is not None:
            store.session.run(lambda connection: jobs.announce_service(connection, worker, announced))
        _report_ready()
        if endpoint is not None and uid is not None:
            _log.info("answering system user %s on %s", user_name(uid), endpoint.path)
        if remote is not None:
            _log.info("answering the hosts of %s on %s", options.shared.service_client_name, remote.address)
        await analyst_process.start()
        while not await _is_set_within(stop_requested, _COUNTS_S):
            await _send_counts(sender, store_counts)
    finally:
        await server.stop(_GRACE_S)
        await _send_counts(sender, store_counts)
        analyst_process.stop()
        batches.close()
        dispatcher.close()
        loader.close()
        if primary is not None:
            primary.close()
        if options.worker is not None:
            _withdraw(options, options.worker)


class _Place(NamedTuple):
    """The directory and the name of the service's socket."""

    directory: Path
    name: str


def _place(options: ServiceSettings, store: Store, installation: str) -> _Place | None:
    """Return where the service's socket is, or None if it answers other hosts alone."""
    if options.worker is not None:
        if not options.shared.service_directory:
            return None
        return _Place(options.directory, socket_name(installation, options.worker))
    facts = store.standby_facts()
    return _Place(standby_directory(facts), standby_socket_name(installation, facts.port))


def _peer_uid(options: ServiceSettings, store: Store) -> int:
    return options.peer_uid if options.peer_uid is not None else store.session.run(server_uid)


def _listener(options: ServiceSettings) -> TlsListener | None:
    """Return the listener for other hosts, or None without an address. A service on a standby has none."""
    shared = options.shared
    if options.worker is None or not shared.service_address:
        return None
    directory = Path(shared.service_tls_directory)
    certificates = ServiceCertificates(directory)
    if fault := validity(directory, options.host_name).fault(datetime.now(UTC)):
        # The service starts, since it may answer sessions of this host, and reads a new certificate by itself.
        _log.warning("the certificate %s %s: no other host accepts this service", directory / "tls.crt", fault)
    host, port = split_address(shared.service_address)
    return TlsListener(host, port, certificates, client_name=shared.service_client_name)


async def _identity(store: Store) -> DatabaseIdentity:
    """Read the identity of the database, outside the event loop because the database may be starting."""
    return await asyncio.get_running_loop().run_in_executor(None, store.identity)


async def _is_set_within(event: asyncio.Event, time_s: float) -> bool:
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), time_s)
    return event.is_set()


async def _send_counts(sender: CountSender, store: Callable[[CountBatch], Awaitable[None]] | None) -> None:
    """Store the counts of predictions. They are dropped on a standby without a connection to the primary."""
    if store is None:
        await sender.drop()
        return
    try:
        await sender.send(store)
    except (DatabaseError, psycopg.Error) as error:
        # Once for an outage: the next calls fail for the same reason.
        level = logging.DEBUG if sender.failing else logging.WARNING
        _log.log(level, "the counts of predictions were not stored, and are kept: %s", error)
        sender.failing = True


class _Loader:
    """Loads versions in threads, each with its own connection, while predictions continue."""

    def __init__(self, options: ServiceSettings) -> None:
        self._options = options
        self._executor = ThreadPoolExecutor(max_workers=_LOADER_THREADS, thread_name_prefix="loader")
        self._thread_local = threading.local()
        self._stores: list[Store] = []

    async def load(self, version: ModelVersionId) -> CachedModel:
        """Load a version from the catalog, and return it ready to predict."""
        loaded = await asyncio.get_running_loop().run_in_executor(self._executor, self._load, version)
        return CachedModel(model=Answers(loaded.predictor), size_bytes=loaded.size_bytes, owner=loaded.owner_oid)

    async def load_bins(self, version: ModelVersionId) -> Sequence[InputBins]:
        """Load the bins of a version's inputs; none if the version was stored without bins."""
        figure = await asyncio.get_running_loop().run_in_executor(self._executor, self._bins, version)
        return () if figure is None else read_bins(figure)

    async def store(self, batch: CountBatch) -> None:
        """Add a batch of counts to those in the catalog."""
        await asyncio.get_running_loop().run_in_executor(self._executor, self._add, batch)

    def close(self) -> None:
        """End the threads and close their connections."""
        self._executor.shutdown(cancel_futures=True)
        for store in self._stores:
            store.close()

    def _load(self, version: ModelVersionId) -> Loaded:
        return self._store().load(version)

    def _bins(self, version: ModelVersionId) -> Mapping[str, Any] | None:
        return self._store().input_bins(version)

    def _add(self, batch: CountBatch) -> None:
        self._store().session.run(lambda connection: store_batch(connection, batch))

    def _store(self) -> Store:
        if not hasattr(self._thread_local, "store"):
            shared = self._options.shared
            # The first request of a thread comes here. If the database cannot be reached then, `load` reports that.
            self._thread_local.store = Store(
                shared.dsn, "service loader", shared.device, shared.threads, at_once=False
            )
            self._stores.append(self._thread_local.store)
        store: Store = self._thread_local.store
        return store


def _report_ready() -> None:
    """Tell the controller, if one has started this service, that the service is ready."""
    descriptor = os.environ.get(ANSWERING_VARIABLE)
    if descriptor is not None:
        with suppress(OSError):
            os.write(int(descriptor), b"1")
            os.close(int(descriptor))


def _withdraw(options: ServiceSettings, worker: WorkerId) -> None:
    """Record in the catalog that this worker has no service. Without the database no user can ask either."""
    with (
        suppress(DatabaseError, psycopg.Error),
        connect(
            options.shared.dsn, application_name="tensile service", lock_timeout_ms=WORK_LOCK_TIMEOUT_MS
        ) as connection,
    ):
        jobs.announce_service(connection, worker, jobs.ServicePlace())


def _stop_event() -> asyncio.Event:
    stop_requested = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop_requested.set)
    return stop_requested


if __name__ == "__main__":
    raise SystemExit(main())
