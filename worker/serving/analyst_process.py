"""The analyst: a second process for what may take seconds, so that no prediction waits for it.

It evaluates, explains and reads the sample data sets: work that holds the interpreter's lock, which a thread
beside the predictions would share. One request at a time; one whose client goes away is ended with the process,
and a new process is started.
"""

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Sequence

from indb_tensile.errors import UnavailableError

from .frames import frame

FD_VARIABLE = "TENSILE_ANALYST_FD"
COMMAND = (sys.executable, "-m", f"{__package__}.analyst")

LIMIT_S = 300.0  # of one request: others wait for it
_LENGTH_BYTES = 4

_log = logging.getLogger(__name__)


class AnalystProcess:
    """The analyst, seen from the service. `command` is given the socket's descriptor in FD_VARIABLE."""

    def __init__(self, command: Sequence[str] = COMMAND, *, limit_s: float = LIMIT_S) -> None:
        self._command = tuple(command)
        self._limit_s = limit_s
        self._turn = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    @property
    def pid(self) -> int | None:
        """The process's id, None where none runs."""
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        """Start the process ahead of its first request."""
        async with self._turn:
            await self._ensure()

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
        process.kill()
        return process.wait()

    async def _ensure(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            _log.warning("the analyst (process %d) ended with code %d", self._process.pid, self._process.returncode)
            self.stop()
        if self._process is not None:
            return
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            self._reader, self._writer = await asyncio.open_unix_connection(sock=ours)
            self._process = subprocess.Popen(
                self._command,
                env={**os.environ, FD_VARIABLE: str(theirs.fileno())},
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
            )
        _log.info("the analyst is process %d", self._process.pid)
