"""The analyst: a second process for what may take seconds, so that no prediction waits for it.

It explains trainings and reads the sample data sets: work that holds the interpreter's lock, which a thread
beside the predictions would share. One request at a time; one whose client goes away is ended with the process,
and a new process is started.
"""

import asyncio
import logging
import socket

from indb_tensile.controller.forkserver import Copy, ForkServer
from indb_tensile.errors import UnavailableError

from .frames import frame

FD_VARIABLE = "TENSILE_ANALYST_FD"
LIMIT_S = 300.0  # of one request: others wait for it
_LENGTH_BYTES = 4
_STARTS = 2  # a fork server that has just died may have been asked for the first one

_log = logging.getLogger(__name__)


class AnalystProcess:
    """The analyst, seen from the service: `module`, run with its end of a socket pair in FD_VARIABLE."""

    def __init__(self, forks: ForkServer, module: str, *, limit_s: float = LIMIT_S) -> None:
        self._forks = forks
        self._module = module
        self._limit_s = limit_s
        self._turn = asyncio.Lock()
        self._heard = asyncio.Event()
        self._process: Copy | None = None
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    @property
    def pid(self) -> int | None:
        """The process's id, None where none runs."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the process ahead of its first request; waits for nothing."""
        async with self._turn:
            if self._process is None:
                self._process = await self._ask()

    async def ask(self, body: bytes) -> bytes:
        """The answer's body to the request's body; requests take turns.

        Raises UnavailableError where the process ended under the request or took longer than a request may.
        Cancelled, the work is ended.
        """
        async with self._turn:
            await self._ensure()
            try:
                async with asyncio.timeout(self._limit_s):
                    return await self._exchange(body)
            except asyncio.CancelledError:
                self.stop()
                raise
            except TimeoutError as error:
                self.stop()
                raise UnavailableError(
                    f"the service gave this request up after {self._limit_s:g} s", hint="ask for less at a time"
                ) from error
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                code = self.stop()
                raise UnavailableError(
                    f"the service's second process ended with code {code} while it worked on this request",
                    hint="ask again; if it ends again, the service's log and the kernel's (memory) say why",
                ) from error

    async def _exchange(self, body: bytes) -> bytes:
        self._writer.write(frame(body))
        await self._writer.drain()
        header = await self._reader.readexactly(_LENGTH_BYTES)
        return await self._reader.readexactly(int.from_bytes(header, "big"))

    def stop(self) -> int | None:
        """End the process at once; its exit code, None where none ran."""
        process, self._process = self._process, None
        if process is None:
            return None
        self._writer.close()
        if process.pid is None:
            process.abandon()
            return None
        return process.reap()

    async def _ensure(self) -> None:
        """Have it run. Raises UnavailableError where it could not be started."""
        process = self._process
        if process is not None and process.pid is not None and process.ended():
            code = self.stop()
            _log.warning("the analyst (process %d) ended with code %s", process.pid, code)
        for _ in range(_STARTS):
            if self._process is None:
                self._process = await self._ask()
            process = self._process
            while process.pid is None and not process.failed:
                self._heard.clear()
                await self._heard.wait()
            if not process.failed:
                return
            self.stop()
        raise UnavailableError(
            "the service's second process could not be started",
            hint="ask again; if it fails again, the service's log says why",
        )

    async def _ask(self) -> Copy:
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            self._reader, self._writer = await asyncio.open_unix_connection(sock=ours)
            asyncio.get_running_loop().add_reader(self._forks.fileno(), self._hear)
            return self._forks.ask(self._module, descriptors={FD_VARIABLE: theirs.fileno()})

    def _hear(self) -> None:
        self._forks.receive()
        self._heard.set()
