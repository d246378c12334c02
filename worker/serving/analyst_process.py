"""Runs the analyst: a second process for requests that may take seconds, so that no prediction waits for them.

The analyst explains trainings and reads the sample data sets. This work needs the interpreter lock, so a thread
beside the predictions would delay them. It handles one request at a time. If the client of a request disconnects, the
process is ended, and a new process is started.
"""

import asyncio
import logging
import socket

from indb_tensile.controller.fork_client import ForkedProcess, ForkServer
from indb_tensile.errors import UnavailableError

from .service_frames import frame

FD_VARIABLE = "TENSILE_ANALYST_FD"
LIMIT_S = 300.0  # time limit of one request, since other requests wait for it
_LENGTH_BYTES = 4
_STARTS = 2  # the first attempt fails if the fork server has just died

_log = logging.getLogger(__name__)


class AnalystProcess:
    """The service's end of the analyst: a process that runs `module` with its end of a socket pair in FD_VARIABLE."""

    def __init__(self, forks: ForkServer, module: str, *, limit_s: float = LIMIT_S) -> None:
        self._forks = forks
        self._module = module
        self._limit_s = limit_s
        self._turn = asyncio.Lock()
        self._fork_answered = asyncio.Event()
        self._process: ForkedProcess | None = None
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    @property
    def pid(self) -> int | None:
        """The process id, or None if no process runs."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the process before its first request, without waiting for it."""
        async with self._turn:
            if self._process is None:
                self._process = await self._request_process()

    async def ask(self, body: bytes) -> bytes:
        """Return the body of the answer to the request with this body. Requests are handled one after another.

        Raises UnavailableError if the process ended during the request, or if the request took too long. If the
        caller is cancelled, the process is ended.
        """
        async with self._turn:
            await self._wait_until_started()
            try:
                async with asyncio.timeout(self._limit_s):
                    return await self._exchange(body)
            except asyncio.CancelledError:
                self.stop()
                raise
            except TimeoutError as error:
                self.stop()
                raise UnavailableError(
                    f"the service cancelled this request after {self._limit_s:g} s", hint="Ask for less at a time."
                ) from error
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                code = self.stop()
                raise UnavailableError(
                    f"the service's second process ended with code {code} while it worked on this request",
                    hint="Ask again. If it ends again, see the service's log and the kernel's log (memory).",
                ) from error

    async def _exchange(self, body: bytes) -> bytes:
        self._writer.write(frame(body))
        await self._writer.drain()
        header = await self._reader.readexactly(_LENGTH_BYTES)
        return await self._reader.readexactly(int.from_bytes(header, "big"))

    def stop(self) -> int | None:
        """End the process at once. Returns its exit code, or None if no process ran."""
        process, self._process = self._process, None
        if process is None:
            return None
        self._writer.close()
        if process.pid is None:
            process.abandon()
            return None
        return process.reap()

    async def _wait_until_started(self) -> None:
        """Start the process if necessary and wait for it. Raises UnavailableError if it could not be started."""
        process = self._process
        if process is not None and process.pid is not None and process.ended():
            code = self.stop()
            _log.warning("the analyst (process %d) ended with code %s", process.pid, code)
        for _ in range(_STARTS):
            if self._process is None:
                self._process = await self._request_process()
            process = self._process
            while process.pid is None and not process.failed:
                self._fork_answered.clear()
                await self._fork_answered.wait()
            if not process.failed:
                return
            self.stop()
        raise UnavailableError(
            "the service's second process could not be started",
            hint="Ask again. If it fails again, see the service's log.",
        )

    async def _request_process(self) -> ForkedProcess:
        own_end, analyst_end = socket.socketpair()
        with analyst_end:
            own_end.setblocking(False)
            self._reader, self._writer = await asyncio.open_unix_connection(sock=own_end)
            asyncio.get_running_loop().add_reader(self._forks.fileno(), self._receive_answers)
            return self._forks.ask(self._module, descriptors={FD_VARIABLE: analyst_end.fileno()})

    def _receive_answers(self) -> None:
        self._forks.receive()
        self._fork_answered.set()
