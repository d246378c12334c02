"""A fake model, and a client of the service."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from indb_tensile.errors import RequestError
from indb_tensile.learning.decoding.jsonrows import column_of
from indb_tensile.learning.evaluation.shapley_values import ShapleyGame
from indb_tensile.learning.storage.columns import ColumnKind, Columns
from indb_tensile.learning.storage.encoded_rows import EncodedRows
from worker.serving.answers import SCORE, Scored
from worker.serving.identity import DatabaseIdentity
from worker.serving.service_frames import RequestBuffer, frame, split_body

DEADLINE_S = 120.0
IDENTITY = DatabaseIdentity(installation="01234567-89ab-cdef-0123-456789abcdef", server_start="1")


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until the condition is true; fail after DEADLINE_S."""
    end_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end_s, f"not within {DEADLINE_S} s"
        threading.Event().wait(0.005)


class Unevaluated:
    """A part of a model that no test evaluates."""

    def permuted_columns(self, x: Any, repeats: int, seed: int) -> Iterator[tuple[str, list[EncodedRows]]]:
        return iter(())

    def odd_columns(self, outputs: Any) -> list[list[Any]] | None:
        """Return None: the model finds no anomalies."""
        del outputs
        return None

    def shapley_game(self, x: Any, label: str | None, seed: int) -> tuple[ShapleyGame, EncodedRows]:
        raise NotImplementedError

    def attributions(self, game: ShapleyGame, outputs: Any, label: str | None) -> list[list[Any]]:
        return []

    def judge(self, options: Any, outputs: Any, targets: Any) -> float:
        return 0.0

    def judged_by(self, options: Any) -> tuple[str, bool]:
        return options.metric, True

    def input_columns(self, rows: Sequence[Any], features: Sequence[str]) -> Columns:
        return {name: column_of(name, ColumnKind.FLOAT, [row[name] for row in rows]) for name in features}

    def metrics(self, outputs: Any, targets: Any) -> dict[str, float]:
        return {}

    def check_figure(self, figure: Any, options: Any) -> None:
        """Have every figure."""

    def figure(self, figure: Any, options: Any, outputs: Any, targets: Any) -> Sequence[Sequence[Any]]:
        return []


class Echo(Unevaluated):
    """A model that returns each row, refuses the row `bad`, and computes only while `gate` is set."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.passes: list[list[Any]] = []

    def predict_rows(self, rows: Sequence[Any], kind: str) -> list[Any]:
        self.entered.set()
        assert self.gate.wait(DEADLINE_S)
        self.passes.append(list(rows))
        if "bad" in rows:
            raise RequestError("column a: 'bad' is not a number")
        if kind == SCORE:
            return [Scored(np.array([row["a"]], np.float32), row["y"]) for row in rows]
        return list(rows) if kind == "value" else [f"{kind} {row}" for row in rows]

    def table_answer(self, entries: Sequence[Any], kind: str) -> dict[str, str | None]:
        return {"values": str(entries), "labels": None, "probabilities": None, "targets": None}

    def features(self, side: str | None = None) -> Sequence[tuple[str, str]]:
        return [("a", "number")]

    def forecast(self) -> None:
        return None

    def own_kind(self) -> str:
        return "value"

    def several(self) -> bool:
        return False

    def figure(self, figure: Any, options: Any, outputs: Any, targets: Any) -> Sequence[Sequence[Any]]:
        return [[figure, options.label, len(outputs)]]

    def metrics(self, outputs: Any, targets: Any) -> dict[str, float]:
        return {"rows": float(len(outputs)), "error": float(np.abs(outputs[:, 0] - targets).sum())}


class Client:
    """A blocking client of the service, like the bridge. `identity` is the database that sends the requests."""

    def __init__(self, path: Path, identity: DatabaseIdentity = IDENTITY) -> None:
        self._identity = {"installation": identity.installation, "server_start": identity.server_start}
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(DEADLINE_S)
        self._socket.connect(str(path))
        self._buffer = RequestBuffer()
        self.greeting: dict[str, Any] | None = None

    def ask(self, verb: str, **fields: Any) -> dict[str, Any]:
        """Send a request and return the answer."""
        self.request(verb, **fields)
        return self.receive()

    def request(self, verb: str, **fields: Any) -> None:
        """Send a request."""
        self.send(self.body(verb, **fields))

    def body(self, verb: str, **fields: Any) -> bytes:
        """Return the body of a request."""
        return json.dumps({"verb": verb, **self._identity, **fields}).encode()

    def send(self, body: bytes) -> None:
        self.send_raw(frame(body))

    def send_raw(self, data: bytes) -> None:
        self._socket.sendall(data)

    def greet(self) -> dict[str, Any]:
        """Return the service's greeting."""
        if self.greeting is None:
            self.greeting = self._receive()
        return self.greeting

    def receive(self) -> dict[str, Any]:
        """Return the next answer, of a page of rows without its texts."""
        self.greet()
        return self._receive()

    def _receive(self) -> dict[str, Any]:
        while (body := self._buffer.take()) is None:
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionError("the service closed the connection")
            self._buffer.feed(data)
        answer: dict[str, Any] = json.loads(split_body(body)[0])
        return answer

    def ended(self) -> bool:
        """Return whether the service has closed the connection. Blocks until it closes it or sends an answer."""
        try:
            self.greet()
            return self._socket.recv(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
