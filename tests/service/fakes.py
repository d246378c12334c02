"""Small stand-ins for what the service is made of, and a client of it."""

import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from indb_tensile.errors import RequestError
from worker.serving.frames import FrameBuffer, frame

DEADLINE_S = 120.0


def eventually(is_so: Callable[[], bool]) -> None:
    """Wait until it is so; fail after DEADLINE_S."""
    end = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < end, "it did not come to pass in time"
        threading.Event().wait(0.005)


class Echo:
    """A model that gives each row back, refuses the row `bad`, and computes only while its gate is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.passes: list[list[Any]] = []

    def predict_rows(self, rows: list[Any], kind: str) -> list[Any]:
        self.entered.set()
        assert self.gate.wait(DEADLINE_S)
        self.passes.append(rows)
        if "bad" in rows:
            raise RequestError("column a: 'bad' is not a number")
        return rows if kind == "value" else [f"{kind} {row}" for row in rows]


class Client:
    """A blocking client of the service, as the bridge is one."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(DEADLINE_S)
        self._socket.connect(str(path))
        self._buffer = FrameBuffer()

    def ask(self, verb: str, **fields: Any) -> dict[str, Any]:
        """The whole answer."""
        self.send(json.dumps({"verb": verb, **fields}).encode())
        return self.receive()

    def send(self, body: bytes) -> None:
        self.send_raw(frame(body))

    def send_raw(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self) -> dict[str, Any]:
        while (body := self._buffer.take()) is None:
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionError("the service closed the connection")
            self._buffer.feed(data)
        answer: dict[str, Any] = json.loads(body)
        return answer

    def ended(self) -> bool:
        """Whether the service has closed the connection; blocks until it says something."""
        try:
            return self._socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
