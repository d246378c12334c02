"""Serves the connections of the database server: reads frames, and sends one answer per frame in the same order.

A server of this host connects to a Unix socket (endpoint.py), and one of another host by TLS (tls_listener.py).
One event loop serves all connections. Each connection works on one request at a time, and the request of a client
that disconnects is cancelled.
"""

import asyncio
import itertools
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

from indb_tensile.errors import InvariantError, TensileError

from .endpoint import BACKLOG, Endpoint
from .peer import peer_uid, user_name
from .requests import failure, refused_greeting
from .service_frames import ProtocolError, RequestBuffer, frame
from .tls_listener import TlsListener

_MAX_WAITING = 8  # requests of one connection in memory; reading continues up to here, to notice a disconnect

_MAX_WAITING_BYTES = 1 << 20  # limit of the same in bytes, if more than one waits

_CLOSING_S = 2.0  # a client that reads needs milliseconds, and one that does not may be slow or malicious

Handle = Callable[[bytes, int], Awaitable[bytes]]
HandleAtOnce = Callable[[bytes], bytes | None]

_log = logging.getLogger(__name__)


class Server:
    """Accepts connections of one system user on the endpoint, and those of other hosts on `remote`.

    Greets each, and answers each frame with `handle`. `endpoint` and `allowed_uid` are None if sessions of this host
    are not answered, and `remote` if those of others are not.
    `handle` gets a frame's body and the connection's number. `handle_at_once` gets a frame's body first and returns
    the answer, or None for a request that has to wait, which is then passed to `handle`: making a task takes
    longer than predicting with a small model. `forget` is called with the number of a connection that has ended.
    """

    def __init__(
        self,
        endpoint: Endpoint | None,
        *,
        allowed_uid: int | None,
        greeting: bytes,
        handle: Handle,
        handle_at_once: HandleAtOnce = lambda _: None,
        forget: Callable[[int], None] = lambda _: None,
        remote: TlsListener | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._remote = remote
        self._allowed_uid = allowed_uid
        self._greeting = frame(greeting)
        self._handle = handle
        self._handle_at_once = handle_at_once
        self._forget = forget
        self._numbers = itertools.count()
        self._connections: set[_Connection] = set()
        self._open: dict[_Connection, asyncio.Transport] = {}  # with those of refused clients
        self._all_ended = asyncio.Event()
        self._all_ended.set()
        self._refused: Counter[str] = Counter()
        self._server: asyncio.Server | None = None

    @property
    def connection_count(self) -> int:
        """The number of connected clients."""
        return len(self._connections)

    async def start(self) -> None:
        """Start to accept connections."""
        loop = asyncio.get_running_loop()
        if self._endpoint is not None:
            # asyncio listens again, by default with a queue of 100.
            self._server = await loop.create_unix_server(
                lambda: _Connection(self), sock=self._endpoint.socket, backlog=BACKLOG
            )
        if self._remote is not None:
            self._remote.start(lambda: _Connection(self))

    async def stop(self, grace_s: float) -> None:
        """Stop accepting, wait up to `grace_s` for requests in progress, and close every connection.

        A connection ends when the client has got what was written, and by TLS when the client has confirmed the end.
        One that has not ended after _CLOSING_S ends at once.
        """
        if self._server is not None:
            self._server.close()
        if self._endpoint is not None:
            self._endpoint.close()
        if self._remote is not None:
            await self._remote.stop()
        working = [c.task for c in self._connections if c.task is not None]
        if working:
            await asyncio.wait(working, timeout=grace_s)
        for transport in self._open.values():
            transport.close()
        await self._await_ends()
        for transport in self._open.values():
            transport.abort()
        await self._await_ends()

    async def _await_ends(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._all_ended.wait(), _CLOSING_S)

    def admit(self, connection: "_Connection", transport: asyncio.Transport) -> tuple[bytes, bool]:
        """Return the first bytes for this client, and whether it is answered. A refused client is logged."""
        self._open[connection] = transport
        self._all_ended.clear()
        certificate = transport.get_extra_info("peercert")
        if self._remote is not None and certificate is not None:
            reason = self._remote.refusal(certificate)
            answer = frame(refused_greeting(reason)) if reason else self._greeting
            who = f"the host {transport.get_extra_info('peername')[0]}"
        else:
            uid = peer_uid(transport.get_extra_info("socket"))
            reason = "" if uid == self._allowed_uid else f"only {user_name(self._allowed_uid or 0)} is answered"
            answer, who = b"" if reason else self._greeting, f"system user {user_name(uid)}"
        if reason:
            self._log_refusal(who, reason)
        else:
            self._connections.add(connection)
            connection.number = next(self._numbers)
        return answer, not reason

    def _log_refusal(self, who: str, reason: str) -> None:
        self._refused[who] += 1
        count = self._refused[who]
        if count & (count - 1) == 0:  # the 1st, 2nd, 4th, 8th ...: repeated attempts must not fill the log
            _log.warning("refused a connection of %s (%d so far): %s", who, count, reason)

    def forget(self, connection: "_Connection") -> None:
        """Remove a connection that has ended."""
        del self._open[connection]
        if not self._open:
            self._all_ended.set()
        self._connections.discard(connection)
        self._forget(connection.number)

    async def answer(self, body: bytes, connection: int) -> bytes:
        """Return the answer's frame. Every error becomes an answer too."""
        try:
            return frame(await self._handle(body, connection))
        except Exception as error:  # noqa: BLE001 - the daemon's outermost loop: logged and answered
            return _failed(body, error)

    def answer_at_once(self, body: bytes) -> bytes | None:
        """Return the answer's frame, or None for a request that has to wait."""
        try:
            answer = self._handle_at_once(body)
            return None if answer is None else frame(answer)
        except Exception as error:  # noqa: BLE001 - the daemon's outermost loop: logged and answered
            return _failed(body, error)


def _failed(body: bytes, error: Exception) -> bytes:
    if isinstance(error, TensileError):
        return frame(failure(error))
    _log.error("a request of %d bytes failed", len(body), exc_info=error)
    fault = InvariantError(
        f"the service failed: {type(error).__name__}: {error}",
        hint="See the service's log for the traceback.",
    )
    return frame(failure(fault))


class _Connection(asyncio.Protocol):
    """One client's connection: its frames and answers."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._buffer = RequestBuffer()
        self._bodies: deque[bytes | ProtocolError] = deque()
        self._transport: asyncio.Transport | None = None
        self._broken = False  # the start of the next frame is unknown
        self._writable = asyncio.Event()
        self._writable.set()
        self.number = -1  # -1 if the connection was refused
        self.task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        first_bytes, admitted = self._server.admit(self, transport)
        if admitted:
            self._transport = transport
        if first_bytes:
            transport.write(first_bytes)
            if not admitted:
                transport.close()
        else:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._transport is None:  # refused: its data is not read
            return
        self._buffer.feed(data)
        self._queue_frames()
        if self._answer_at_once():
            return
        if self._is_full() or self._broken:
            # Further requests of this client wait in the kernel, not in this process's memory.
            self._transport.pause_reading()
        if self._bodies and self.task is None:
            self.task = asyncio.ensure_future(self._answer_frames())

    def eof_received(self) -> bool:
        return False  # close: a half-closed connection is not answered

    def connection_lost(self, exc: Exception | None) -> None:
        if self.task is not None:
            self.task.cancel()
        self._transport = None
        self._server.forget(self)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _is_full(self) -> bool:
        waiting = [len(body) for body in self._bodies if isinstance(body, bytes)]
        return len(waiting) >= _MAX_WAITING or (len(waiting) > 1 and sum(waiting) > _MAX_WAITING_BYTES)

    def _queue_frames(self) -> None:
        try:
            while (body := self._buffer.take()) is not None:
                self._bodies.append(body)
        except ProtocolError as error:
            self._bodies.append(error)
            self._broken = True

    def _answer_at_once(self) -> bool:
        """Answer the only request of this connection, unless the request has to wait."""
        if self.task is not None or len(self._bodies) != 1 or self._broken or not self._writable.is_set():
            return False
        (body,) = self._bodies
        answer = self._server.answer_at_once(body) if isinstance(body, bytes) else None
        if answer is None or self._transport is None:
            return False
        self._bodies.clear()
        self._transport.write(answer)
        return True

    async def _answer_frames(self) -> None:
        while self._bodies and self._transport is not None:
            body = self._bodies.popleft()
            if isinstance(body, ProtocolError):
                self._transport.write(frame(failure(body)))
                self._transport.close()  # the start of the next frame is unknown
                return
            answer = await self._server.answer(body, self.number)
            if self._transport is None:
                return
            self._transport.write(answer)
            await self._writable.wait()
            if not self._broken:
                self._transport.resume_reading()
        self.task = None
