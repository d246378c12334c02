"""The session's connection to the service, opened at the first request and reopened if it breaks.

A service of the database's own host is reached by a Unix socket, and one of another host by TLS (remote_service.py).
Each request contains the identity of its database, and a service answers only its own database. A service sends a
greeting first; the bridge sends no request to a service of another database or another protocol.
"""

import json
import re
import socket
import struct
import time
from typing import Any

from .refusals import TOO_MUCH, UNAVAILABLE, RefusalError
from .remote_service import SLICE_S, RemoteFaultError, RemoteService
from .spi import Json, Plpy, Row, check_for_cancel, fetch

PROTOCOL = 6  # version of greeting and requests, equal to the service's
PART_BYTES = 1 << 20  # size of one part of a long list: other requests wait while the service decodes a part
_MAX_FRAME_BYTES = 32 << 20  # equal to the service's limit
MOST_ROW_BYTES = _MAX_FRAME_BYTES - 4096  # largest row as JSON; the rest is for the verb and the database's identity
_GREETING_S = 10.0  # a service that hangs accepts connections but sends no greeting


def ask(plpy: Plpy, request: Json) -> Any:
    """Send a request and return the service's result.

    Raises RefusalError with the service's error, or with SQLSTATE 57P03 if no service answers.
    """
    return ask_rows(plpy, request, None)


def ask_rows(plpy: Plpy, request: Json, rows: list[bytes] | None) -> Any:
    """Send a request with rows and return the service's result.

    The rows are JSON already and are written into the request unchanged, without decoding them.
    """
    return result_of(_connection.exchange(plpy, json.dumps(request).encode(), rows))


def result_of(answer: bytes) -> Any:
    """Return the result in the body of an answer. Raises ServiceRefusalError for an error."""
    decoded = json.loads(answer)
    if decoded["ok"]:
        return decoded["result"]
    raise ServiceRefusalError(decoded["error"])


def page_of(answer: bytes) -> Json:
    """Return the result in the body of an answer for rows of a relation, with its texts. Raises as `result_of` does.

    The texts follow the JSON, which has their sizes. In JSON each quote would be escaped.
    """
    if not answer.startswith(b"\0"):  # an error, or no rows
        return dict(result_of(answer))
    end = 5 + int.from_bytes(answer[1:5], "big")
    result: Json = result_of(answer[5:end])
    for name, size_bytes in result.pop("texts").items():
        begin, end = end, end + (size_bytes or 0)
        result[name] = None if size_bytes is None else answer[begin:end].decode()
    return result


class ServiceRefusalError(RefusalError):
    """An error of the service. `row` is the position of the row at fault, or None."""

    def __init__(self, error: Json) -> None:
        super().__init__(
            error["sqlstate"], error["message"], detail=error.get("detail", ""), hint=error.get("hint", "")
        )
        self.row: int | None = error.get("row")

    def of_row(self, number: int) -> RefusalError:
        """Return the same error with the row's number in the message. Rows count from 1."""
        return RefusalError(self.sqlstate, f"row {number}: {self.message}", detail=self.detail, hint=self.hint)


def ping(plpy: Plpy, request: Json) -> Json:
    """Return the service's description of itself."""
    return dict(ask(plpy, {"verb": "ping"}))


class ServiceConnection:
    """A connection to the service, with one request at a time."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._identity = b""  # this database's identity for requests; constant within a session
        self._unanswered: tuple[bytes, list[bytes] | None, bytes | None] = (b"{}", None, None)
        self._resendable = False  # the unanswered request was sent on a connection that had answered others before

    def exchange(self, plpy: Plpy, request: bytes, rows: list[bytes] | None) -> bytes:
        """Send a request, a JSON object, and return the body of the answer.

        If an open connection fails, the request is sent again on a new connection.
        """
        self.send(plpy, request, rows)
        return self.receive(plpy)

    def send(self, plpy: Plpy, request: bytes, rows: list[bytes] | None = None, records: bytes | None = None) -> None:
        """Send a request, with rows as JSON or as records of `record_send`. `receive` returns its answer."""
        self._unanswered = (request, rows, records)
        self._resendable = self._socket is not None
        if self._resendable:
            try:
                self._send_once(plpy)
            except OSError:  # the service was restarted; every request may safely be sent twice
                self._send_anew(plpy)
        else:
            self._send_anew(plpy)

    def receive(self, plpy: Plpy) -> bytes:
        """Return the body of the answer to the last request."""
        try:
            return self._receive_once(plpy)
        except OSError as error:
            if not self._resendable:
                raise _broken_error(error) from None
        self._send_anew(plpy)
        try:
            return self._receive_once(plpy)
        except OSError as error:
            raise _broken_error(error) from None

    def close(self) -> None:
        """Close the connection. The next exchange opens a new one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _frame(self) -> bytes:
        request, rows, records = self._unanswered
        parts = [request[:-1], self._identity]
        if rows is not None:
            parts += [b', "rows": [', b", ".join(rows), b"]"]
        parts.append(b"}")
        if records is not None:  # a zero byte, the size of the JSON, the JSON, the records
            parts = [struct.pack(">xI", sum(map(len, parts))), *parts, records]
        size_bytes = sum(map(len, parts))
        if size_bytes > _MAX_FRAME_BYTES:
            message = f"a request of {size_bytes} bytes exceeds the {_MAX_FRAME_BYTES} that the service reads"
            raise RefusalError(TOO_MUCH, message, hint="Give fewer or shorter arguments.")
        return b"".join([struct.pack(">I", size_bytes), *parts])

    def _send_anew(self, plpy: Plpy) -> None:
        self._resendable = False
        self._socket = self._connect(plpy)
        try:
            self._send_once(plpy)
        except OSError as error:
            raise _broken_error(error) from None

    def _send_once(self, plpy: Plpy) -> None:
        """Send the request. A connection that fails is closed."""
        connection = self._take_socket()
        try:
            _send(plpy, connection, self._frame())
            self._socket = connection
        finally:
            if self._socket is None:
                connection.close()

    def _receive_once(self, plpy: Plpy) -> bytes:
        """Receive the answer. A connection whose answer is not read to its end is closed."""
        connection = self._take_socket()
        try:
            answer = _receive_frame(plpy, connection)
            self._socket = connection
            return answer
        finally:
            if self._socket is None:
                connection.close()

    def _take_socket(self) -> socket.socket:
        connection, self._socket = self._socket, None
        if connection is None:
            raise ConnectionError("no connection is open")
        return connection

    def _connect(self, plpy: Plpy) -> socket.socket:
        """Connect to a service of this database: first to those of this host, then to those of others.

        Among both, the one with the latest heartbeat comes first.
        """
        facts = fetch(plpy, SERVICES)[0]
        installation = facts["installation"]
        self._identity = (
            f', "installation": {json.dumps(installation)}, "server_start": {json.dumps(facts["server_start"])}'
        ).encode()
        if not facts["directory"] and not facts["addresses"]:
            hint = "An administrator sets it: select tensile_set_setting('socket_directory', '\"/run/tensile\"')."
            raise RefusalError(UNAVAILABLE, "no service answers: the setting socket_directory is not set", hint=hint)
        failures, way_out = [], ""
        for service in _services(facts):
            try:
                return _greeted(plpy, service, installation)
            except OSError as error:
                fault = service.fault(error)
                failures.append(f"{service.label}: {fault.strerror or fault}")
                way_out = way_out or str(getattr(fault, "hint", ""))
        detail = f"Tried {'; '.join(failures)}." if failures else "No controller with a service is alive."
        raise _unavailable_error(detail, way_out, standby=facts["standby"])


class _LocalService:
    """A service of this host, at its Unix socket."""

    def __init__(self, directory: str, name: str) -> None:
        self.label = name
        self._path = f"{directory.rstrip('/')}/{name}.sock"

    def open(self, plpy: Plpy) -> socket.socket:
        """Return a connection, on which each wait takes SLICE_S at most."""
        del plpy  # a connection to a process of this host is made or refused at once
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        connection.settimeout(SLICE_S)
        try:
            connection.connect(self._path)
        except OSError:
            connection.close()
            raise
        return connection

    def fault(self, error: OSError) -> OSError:
        """Return the error itself, which says enough."""
        return error


def _services(facts: Row) -> list[_LocalService | RemoteService]:
    directory, names = facts["directory"], facts["names"] or []
    names = [name for name in names if directory and _NAME.fullmatch(name)]  # must be a name, not a path
    remote = zip(facts["addresses"] or [], facts["host_names"] or [], strict=True)
    return [
        *(_LocalService(directory, name) for name in names),
        *(RemoteService(address, host_name, facts["tls_directory"]) for address, host_name in remote),
    ]


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


def _greeted(plpy: Plpy, service: _LocalService | RemoteService, installation: str) -> socket.socket:
    """Return a connection to this service after its greeting."""
    connection = service.open(plpy)
    greeted = False
    try:
        _check_greeting(_receive_frame(plpy, connection, within_s=_GREETING_S), installation)
        greeted = True
    finally:
        if not greeted:
            connection.close()
    return connection


def _check_greeting(body: bytes, installation: str) -> None:
    """Raise ConnectionError unless the greeting is from this database's service and in this protocol."""
    try:
        greeting = dict(json.loads(body))
    except (ValueError, TypeError, RecursionError):
        raise ConnectionError("the process that listens there is not a service") from None
    if "refused" in greeting:  # a service of another host, about this server's certificate
        raise RemoteFaultError(str(greeting["refused"]), str(greeting.get("hint", "")))
    if greeting.get("protocol") != PROTOCOL:
        version = greeting.get("version")
        raise ConnectionError(f"its version is {version!r}, and its protocol differs from this catalog's")
    if greeting.get("installation") != installation:
        raise ConnectionError("it belongs to another database")


def _unavailable_error(detail: str, way_out: str = "", *, standby: bool = False) -> RefusalError:
    hint = way_out or "Start one with: tensile up, or tensile controller; tensile doctor says what is missing."
    if standby:
        hint = "This server is a hot standby. Start a service beside it: tensile service --read-only."
    return RefusalError(UNAVAILABLE, "no service answers", detail=detail, hint=hint)


def _broken_error(error: OSError) -> RefusalError:
    return _unavailable_error(f"The connection broke: {error}.")


def _send(plpy: Plpy, connection: socket.socket, frame: bytes) -> None:
    remaining = memoryview(frame)
    while remaining:
        try:
            remaining = remaining[connection.send(remaining) :]
        except TimeoutError:
            check_for_cancel(plpy)


def _receive_frame(plpy: Plpy, connection: socket.socket, within_s: float | None = None) -> bytes:
    """Return the body of the next frame.

    Raises OSError if the service closes the connection or does not answer within `within_s`.
    """
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
            check_for_cancel(plpy)
            if until_s is not None and time.monotonic() > until_s:
                raise ConnectionError("it accepts connections but sends no greeting") from None
            continue
        if not part:
            raise ConnectionResetError("the service closed the connection")
        received += part
    return bytes(received)


_connection = ServiceConnection()

# No service is announced in the catalog of a standby, and one of the primary answers the primary alone.
SERVICES = """
select (select s.value #>> '{}' from tensile.settings as s where s.name = 'socket_directory') as directory,
       (select s.value #>> '{}' from tensile.settings as s where s.name = 'tls_directory') as tls_directory,
       case when pg_catalog.pg_is_in_recovery()
            then array[left(replace(tensile.installation()::text, '-', ''), 12) || '-standby-'
                         || pg_catalog.current_setting('port')]
            else w.names end as names,
       case when not pg_catalog.pg_is_in_recovery() then w.addresses end as addresses,
       case when not pg_catalog.pg_is_in_recovery() then w.host_names end as host_names,
       pg_catalog.pg_is_in_recovery() as standby,
       tensile.installation()::text as installation,
       (extract(epoch from pg_catalog.pg_postmaster_start_time()) * 1000000)::bigint::text as server_start
  from (select pg_catalog.array_agg(v.service_name order by v.heartbeat_at desc, v.worker_id)
                 filter (where v.service_name is not null) as names,
               pg_catalog.array_agg(v.service_address order by v.heartbeat_at desc, v.worker_id)
                 filter (where v.service_address is not null) as addresses,
               pg_catalog.array_agg(v.service_host_name order by v.heartbeat_at desc, v.worker_id)
                 filter (where v.service_address is not null) as host_names
          from tensile.workers as v where v.stopped_at is null) as w"""
