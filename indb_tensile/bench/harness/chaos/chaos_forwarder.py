"""Forwards connections between controllers and their database, and breaks, stalls or refuses them on demand.

A forwarder runs on a thread of its own. The server sees this process as the peer of every forwarded connection.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

_CHUNK_BYTES = 1 << 16
Result = TypeVar("Result")


class Forwarder:
    """Forwards each connection to `listen` on to the Unix socket `target`, until `close`.

    `listen` is the path of a Unix socket, or a host and a port.
    """

    def __init__(self, listen: Path | tuple[str, int], target: Path) -> None:
        self._listen, self._target = listen, target
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._refusing = False
        self._loop = asyncio.new_event_loop()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._thread = threading.Thread(target=self._run, name="forwarder", daemon=True)
        opening = (
            asyncio.start_unix_server(self._accept, listen)
            if isinstance(listen, Path)
            else asyncio.start_server(self._accept, *listen)
        )
        self._server = self._loop.run_until_complete(opening)
        self._thread.start()

    def cut(self) -> int:
        """Break all connections and return their number. New connections are accepted."""
        return self._call(self._break_all)

    def stall(self) -> None:
        """Pass no data on, in either direction, and leave connections open."""
        self._call(self._flowing.clear)

    def refuse(self) -> int:
        """Break all connections, and every new connection at once. Returns the number of connections."""
        self._refusing = True
        return self.cut()

    def heal(self) -> None:
        """Accept connections and pass data on again, beginning with the data held back."""
        self._refusing = False
        self._call(self._flowing.set)

    def close(self) -> None:
        """Close all connections, and accept no further ones."""
        self.cut()
        self._call(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._end_connections())
        self._loop.close()
        if isinstance(self._listen, Path):
            self._listen.unlink(missing_ok=True)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _call(self, action: Callable[[], Result]) -> Result:
        async def run() -> Result:
            return action()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def _break_all(self) -> int:
        count = len(self._writers) // 2
        for writer in self._writers:
            writer.transport.abort()
        return count

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A task of our own: asyncio prints a traceback when a task is cancelled that it has made for a connection.
        task = self._loop.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        try:
            target_reader, target_writer = await asyncio.open_unix_connection(self._target)
        except OSError:  # no server listens: the client sees its connection closed
            writer.transport.abort()
            return
        pair = {writer, target_writer}
        self._writers |= pair
        directions = [self._forward(reader, target_writer), self._forward(target_reader, writer)]
        try:
            await asyncio.gather(*directions)
        finally:
            for end in pair:
                end.transport.abort()
            self._writers -= pair

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass data on in one direction until either end is closed."""
        with suppress(OSError):
            while chunk := await reader.read(_CHUNK_BYTES):
                await self._flowing.wait()
                writer.write(chunk)
                await writer.drain()
        writer.close()

    async def _end_connections(self) -> None:
        """Cancel the tasks of broken connections and wait for their end."""
        tasks = tuple(self._serving)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
