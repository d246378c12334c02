"""The session's connection to a service: opened at the first request, opened anew when it has died."""

import json
import re
import socket
import struct
from typing import Any

from .errors import TOO_MUCH, UNAVAILABLE, RefusalError
from .spi import Json, Plpy, fetch

_MAX_FRAME_BYTES = 64 << 20  # the service's own bound
_SLICE_S = 0.1  # how long a cancel may go unnoticed


def ask(plpy: Plpy, request: Json | str) -> Any:
    """The result that the service answers with. Raises RefusalError: its error, or 57P03 where none answers."""
    body = request.encode() if isinstance(request, str) else json.dumps(request).encode()
    if len(body) > _MAX_FRAME_BYTES:
        message = f"a request of {len(body)} bytes exceeds the {_MAX_FRAME_BYTES} that the service reads"
        raise RefusalError(TOO_MUCH, message, hint="Ask for fewer rows at a time.")
    answer = json.loads(_line.exchange(plpy, struct.pack(">I", len(body)) + body))
    if answer["ok"]:
        return answer["result"]
    error = answer["error"]
    raise RefusalError(
        error["sqlstate"], error["message"], detail=error.get("detail", ""), hint=error.get("hint", "")
    )


def ping(plpy: Plpy, request: Json) -> Json:
    """Ask the service who it is: whether one answers at all."""
    return dict(ask(plpy, {"verb": "ping"}))


class Line:
    """One connection at a time, with one request on it at a time."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def exchange(self, plpy: Plpy, frame: bytes) -> bytes:
        """Send a frame, and give the frame that answers it."""
        if self._socket is not None:
            try:
                return self._once(plpy, self._socket, frame)
            except OSError:
                pass  # the service was restarted since: everything it is asked may be asked twice
        self._socket = _connected(plpy)
        try:
            return self._once(plpy, self._socket, frame)
        except OSError as error:
            raise _no_service(f"The connection broke: {error}.") from None

    def close(self) -> None:
        """Hang up; the next exchange opens anew."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _once(self, plpy: Plpy, connection: socket.socket, frame: bytes) -> bytes:
        """Send, then receive. A connection that fails, or whose answer is not waited for, is not used again."""
        self._socket = None
        try:
            _send(plpy, connection, frame)
            (size_bytes,) = struct.unpack(">I", _receive(plpy, connection, 4))
            if size_bytes > _MAX_FRAME_BYTES:
                raise ConnectionError(f"the answer announces {size_bytes} bytes")
            answer = _receive(plpy, connection, size_bytes)
            self._socket = connection
            return answer
        finally:
            if self._socket is None:
                connection.close()


def _connected(plpy: Plpy) -> socket.socket:
    """A connection to the first service that accepts one, the one that was alive last before the others."""
    facts = fetch(plpy, SERVICES)[0]
    directory, names = facts["directory"], facts["names"] or []
    if not directory:
        hint = "An administrator sets it: select tensile_set_setting('socket_directory', '\"/run/tensile\"')."
        raise RefusalError(UNAVAILABLE, "no service answers: the setting socket_directory is not set", hint=hint)
    faults = []
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", name):
            continue  # a name, never a path
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        connection.settimeout(_SLICE_S)
        try:
            connection.connect(f"{directory.rstrip('/')}/{name}.sock")
        except OSError as error:
            connection.close()
            faults.append(f"{name}: {error.strerror or error}")
        else:
            return connection
    raise _no_service(f"Tried {'; '.join(faults)}." if faults else "No controller with a service is alive.")


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


def _receive(plpy: Plpy, connection: socket.socket, size_bytes: int) -> bytes:
    received = bytearray()
    while len(received) < size_bytes:
        try:
            part = connection.recv(min(1 << 20, size_bytes - len(received)))
        except TimeoutError:
            _notice_cancel(plpy)
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
              order by w.heartbeat_at desc) as names"""
