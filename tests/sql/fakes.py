"""A fake service: it speaks the service's protocol, and a function of the test answers each request."""

import contextlib
import json
import shutil
import socket
import struct
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from indb_tensile.sql_api.service_connection import PROTOCOL

# Returns the answer to a request. None: the service sends no answer and keeps the connection open.
Answer = Callable[[dict[str, Any]], dict[str, Any] | None]

INSTALLATION = "01234567-89ab-cdef-0123-456789abcdef"  # the installation id of no real database


class FakeService:
    """Listens at `<directory>/<name>.sock` until closed, and records the requests.

    `requests` are the requests without the database's identity, `clients` the installation and server start of each
    request's database. `greeting` is the first message on each connection; None: no message.
    """

    def __init__(
        self,
        answer: Answer,
        name: str = "worker-1",
        directory: Path | None = None,
        *,
        installation: str = INSTALLATION,
    ) -> None:
        self.answer = answer
        self.greeting: Any = {"protocol": PROTOCOL, "version": "0", "installation": installation}
        self.clients: list[tuple[str, str]] = []
        self.name = name
        self.requests: list[dict[str, Any]] = []
        self.connections: list[socket.socket] = []
        self.directory = directory or Path(tempfile.mkdtemp(prefix="tensile-fake-"))
        self.directory.chmod(0o755)  # the database server's system user must be able to enter
        self._listener = socket.socket(socket.AF_UNIX)
        self.path.unlink(missing_ok=True)
        self._listener.bind(str(self.path))
        self.path.chmod(0o666)
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def path(self) -> Path:
        """The socket's file."""
        return self.directory / f"{self.name}.sock"

    def drop_connections(self) -> None:
        """Close every connection, as a service that is restarted does."""
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.connections.clear()

    def close(self) -> None:
        """Stop listening and remove the directory."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop_connections()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError), connection.makefile("rb") as stream:
            if self.greeting is not None:
                _send(connection, self.greeting)
            while header := stream.read(4):
                request = json.loads(stream.read(struct.unpack(">I", header)[0]))
                self.clients.append((request.pop("installation"), request.pop("server_start")))
                self.requests.append(request)
                answer = self.answer(request)
                if answer is not None:
                    _send(connection, answer)


def echo(request: dict[str, Any]) -> dict[str, Any]:
    """Answer each row of a prediction with the row's position plus 0.5."""
    if request["verb"] == "ping":
        return result({"version": "0"})
    return result({"values": [place + 0.5 for place, _ in enumerate(request["rows"])]})


def _send(connection: socket.socket, value: Any) -> None:
    body = json.dumps(value).encode()
    connection.sendall(struct.pack(">I", len(body)) + body)


def result(value: Any) -> dict[str, Any]:
    """Return the answer to a request that succeeded."""
    return {"ok": True, "result": value}
