"""The session's connection to a service: opened at the first request, opened anew when it has died.

Each request names the database that asks, and a service answers its own database only. A service greets first: one
of another database, or of another protocol, is not asked at all.
"""

import json
import re
import socket
import struct
import time
from typing import Any

from .errors import TOO_MUCH, UNAVAILABLE, RefusalError
from .spi import Json, Plpy, fetch

PROTOCOL = 2  # of greeting and requests: the service's own
PART_BYTES = 1 << 20  # of one request, where it can be cut: others wait while the service decodes it
_MAX_FRAME_BYTES = 32 << 20  # the service's own bound
MOST_ROW_BYTES = _MAX_FRAME_BYTES - 4096  # of a row as JSON: beside it a request has its verb and who asks
_SLICE_S = 0.1  # how long a cancel may go unnoticed
_GREETING_S = 10.0  # a service that hangs accepts connections, and greets nobody


def ask(plpy: Plpy, request: Json) -> Any:
    """The result that the service answers with. Raises RefusalError: its error, or 57P03 where none answers."""
    return ask_rows(plpy, request, None)


def ask_rows(plpy: Plpy, request: Json, rows: list[bytes] | None) -> Any:
    """The same with rows, which are JSON already: written into the request as they are, they need not be read."""
    answer = json.loads(_line.exchange(plpy, json.dumps(request).encode(), rows))
    if answer["ok"]:
        return answer["result"]
    raise ServiceRefusalError(answer["error"])


class ServiceRefusalError(RefusalError):
    """The service's own error; `row` is the place of the row that does not fit, where one row is at fault."""

    def __init__(self, error: Json) -> None:
        super().__init__(
            error["sqlstate"], error["message"], detail=error.get("detail", ""), hint=error.get("hint", "")
        )
        self.row: int | None = error.get("row")

    def of_row(self, number: int) -> RefusalError:
        """The same error, which names its row; rows count from 1."""
        error = self.error
        return RefusalError(
            error["sqlstate"], f"row {number}: {error['message']}", detail=error["detail"], hint=error["hint"]
        )


def ping(plpy: Plpy, request: Json) -> Json:
    """Ask the service who it is: whether one answers at all."""
    return dict(ask(plpy, {"verb": "ping"}))


class Line:
    """One connection at a time, with one request on it at a time."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._identity = b""  # of this database, as requests carry it; a session never changes its database

    def exchange(self, plpy: Plpy, request: bytes, rows: list[bytes] | None) -> bytes:
        """Send a request, a JSON object, and give the body that answers it."""
        if self._socket is not None:
            try:
                return self._once(plpy, self._socket, self._frame(request, rows))
            except OSError:
                pass  # the service was restarted since: everything it is asked may be asked twice
        self._socket = self._connected(plpy)
        try:
            return self._once(plpy, self._socket, self._frame(request, rows))
        except OSError as error:
            raise _no_service(f"The connection broke: {error}.") from None

    def close(self) -> None:
        """Hang up; the next exchange opens anew."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _frame(self, request: bytes, rows: list[bytes] | None) -> bytes:
        parts = [request[:-1], self._identity]
        if rows is not None:
            parts += [b', "rows": [', b", ".join(rows), b"]"]
        parts.append(b"}")
        size_bytes = sum(map(len, parts))
        if size_bytes > _MAX_FRAME_BYTES:
            message = f"a request of {size_bytes} bytes exceeds the {_MAX_FRAME_BYTES} that the service reads"
            raise RefusalError(TOO_MUCH, message, hint="Give fewer or shorter arguments.")
        return b"".join([struct.pack(">I", size_bytes), *parts])

    def _once(self, plpy: Plpy, connection: socket.socket, frame: bytes) -> bytes:
        """Send, then receive. A connection that fails, or whose answer is not waited for, is not used again."""
        self._socket = None
        try:
            _send(plpy, connection, frame)
            answer = _receive_frame(plpy, connection)
            self._socket = connection
            return answer
        finally:
            if self._socket is None:
                connection.close()

    def _connected(self, plpy: Plpy) -> socket.socket:
        """A connection to the first service of this database, the one that was alive last before the others."""
        facts = fetch(plpy, SERVICES)[0]
        directory, names = facts["directory"], facts["names"] or []
        installation = facts["installation"]
        self._identity = (
            f', "installation": {json.dumps(installation)}, "server_start": {json.dumps(facts["server_start"])}'
        ).encode()
        if not directory:
            hint = "An administrator sets it: select tensile_set_setting('socket_directory', '\"/run/tensile\"')."
            raise RefusalError(UNAVAILABLE, "no service answers: the setting socket_directory is not set", hint=hint)
        faults = []
        for name in names:
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", name):
                continue  # a name, never a path
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            connection.settimeout(_SLICE_S)
            greeted = False
            try:
                connection.connect(f"{directory.rstrip('/')}/{name}.sock")
                _check_greeting(_receive_frame(plpy, connection, within_s=_GREETING_S), installation)
                greeted = True
            except OSError as error:
                faults.append(f"{name}: {error.strerror or error}")
            finally:
                if not greeted:
                    connection.close()
            if greeted:
                return connection
        raise _no_service(f"Tried {'; '.join(faults)}." if faults else "No controller with a service is alive.")


def _check_greeting(body: bytes, installation: str) -> None:
    """Raise ConnectionError unless this database's service greets, in the protocol of this catalog."""
    try:
        greeting = dict(json.loads(body))
    except (ValueError, TypeError, RecursionError):
        raise ConnectionError("what listens there is no service") from None
    if greeting.get("protocol") != PROTOCOL:
        version = greeting.get("version")
        raise ConnectionError(f"its version is {version!r}, whose protocol this catalog does not speak")
    if greeting.get("installation") != installation:
        raise ConnectionError("it belongs to another database")


def _no_service(detail: str) -> RefusalError:
    hint = "Start one with: tensile up, or tensile controller; tensile doctor says what is missing."
    return RefusalError(UNAVAILABLE, "no service answers", detail=detail, hint=hint)


def _send(plpy: Plpy, connection: socket.socket, frame: bytes) -> None:
    left = memoryview(frame)
    while left:
        try:
            left = left[connection.send(left) :]
        except TimeoutError:
            _notice_cancel(plpy)


def _receive_frame(plpy: Plpy, connection: socket.socket, within_s: float | None = None) -> bytes:
    """The next frame's body. Raises OSError where the service closes, or where it takes longer than `within_s`."""
    until_s = None if within_s is None else time.monotonic() + within_s
    (size_bytes,) = struct.unpack(">I", _receive(plpy, connection, 4, until_s))
    if size_bytes > _MAX_FRAME_BYTES:
        raise ConnectionError(f"the answer announces {size_bytes} bytes")
    return _receive(plpy, connection, size_bytes, until_s)


def _receive(plpy: Plpy, connection: socket.socket, size_bytes: int, until_s: float | None) -> bytes:
    received = bytearray()
    while len(received) < size_bytes:
        try:
            part = connection.recv(min(1 << 20, size_bytes - len(received)))
        except TimeoutError:
            _notice_cancel(plpy)
            if until_s is not None and time.monotonic() > until_s:
                raise ConnectionError("it accepts connections and does not greet") from None
            continue
        if not part:
            raise ConnectionResetError("the service closed it")
        received += part
    return bytes(received)


def _notice_cancel(plpy: Plpy) -> None:
    """Any statement does: a cancel or a timeout that has arrived is raised by it."""
    plpy.execute("select 1")


_line = Line()

SERVICES = """
select (select s.value #>> '{}' from tensile.settings as s where s.name = 'socket_directory') as directory,
       array(select w.service_name from tensile.workers as w
              where w.service_name is not null and w.stopped_at is null
              order by w.heartbeat_at desc) as names,
       tensile.installation()::text as installation,
       (extract(epoch from pg_catalog.pg_postmaster_start_time()) * 1000000)::bigint::text as server_start"""
