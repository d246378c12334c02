"""Run the service's server in a thread of its own, with a fake model and a fake analyst."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from indb_tensile.errors import DataError
from indb_tensile.job import ModelVersionId
from indb_tensile.learning.evaluation.input_bins import InputBins
from worker.serving.dispatch import RequestDispatcher
from worker.serving.endpoint import Endpoint
from worker.serving.identity import DatabaseIdentity, IdentityCheck
from worker.serving.input_counts import InputCounts
from worker.serving.model_cache import CachedModel, ModelCache
from worker.serving.prediction_batches import Batches
from worker.serving.requests import greeting
from worker.serving.server import Server
from worker.serving.table_readings import TableReadings
from worker.serving.tls_listener import TlsListener

from .fakes import DEADLINE_S, IDENTITY, Client, Echo


class SlowAnalyst:
    """An analyst that answers when its gate is set, and counts cancelled requests."""

    pid = 4711

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.requests: list[bytes] = []
        self.abandoned = 0

    async def ask(self, body: bytes) -> bytes:
        self.requests.append(body)
        if b'"fault"' in body:
            raise DataError("row 3: no", detail="a is missing", hint="give a")
        if b'"crash"' in body:
            raise ZeroDivisionError("one by nought")
        try:
            while not self.gate.is_set():
                await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            self.abandoned += 1
            raise
        return b'{"ok":true,"result":"slow"}'


class ServerThread:
    """A server in a thread of its own, with an echoing model and a slow analyst."""

    def __init__(self, directory: Path, allowed_uid: int, listen: Callable[[], TlsListener] | None = None) -> None:
        """Start the server. `listen` makes what listens for other hosts, at `remote.address`."""
        self.model = Echo()
        self.analyst = SlowAnalyst()
        self.database = IDENTITY
        self.identity_reads = 0  # how often it read the database's identity
        self.path = directory / "worker-1.sock"
        self.remote: TlsListener | None = None
        self._listen = listen
        self._directory = directory
        self._allowed_uid = allowed_uid
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))
        self._thread.start()
        assert self._started.wait(DEADLINE_S)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self.batches = Batches(lambda: 0)
        self.front = RequestDispatcher(
            gate=IdentityCheck(IDENTITY, self._identity),
            residents=ModelCache(self._load, 100),
            batches=self.batches,
            analyst=self.analyst,
            readings=TableReadings(lambda: ""),
            inputs=InputCounts(self._bins),
            code_version="1.2",
        )
        self.remote = None if self._listen is None else self._listen()
        self.server = Server(
            Endpoint(self._directory, "worker-1"),
            allowed_uid=self._allowed_uid,
            greeting=greeting(IDENTITY.installation, "1.2"),
            handle=self.front.handle,
            forget=self.front.forget,
            remote=self.remote,
        )
        await self.server.start()
        self._started.set()
        await self._stopping.wait()
        await self.server.stop(grace_s=0.5)
        self.batches.close()
        self.front.close()

    async def _identity(self) -> DatabaseIdentity:
        self.identity_reads += 1
        return self.database

    async def _load(self, version: ModelVersionId) -> CachedModel:
        if version == 404:
            raise DataError("there is no version 404")
        return CachedModel(model=self.model, size_bytes=10)

    async def _bins(self, version: ModelVersionId) -> Sequence[InputBins]:
        return ()

    def begin_stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)

    def stop(self) -> None:
        self.model.gate.set()
        with suppress(RuntimeError):  # the loop is closed if the test has stopped the server
            self.begin_stop()
        self._thread.join(DEADLINE_S)


def predict(client: Client, *rows: Any) -> Any:
    return client.ask("predict", version=1, rows=list(rows), kind="value")
