"""Requests predictions from the service throughout a chaos test, and compares each answer with the expected value."""

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import cycle
from math import isclose

import psycopg

from indb_tensile.bench.harness.chaos.chaos_jobs import Reference, Training
from indb_tensile.bench.harness.chaos.chaos_rig import PURPOSE, SQL, ChaosRig
from indb_tensile.catalog.connection import Connection, connect
from indb_tensile.errors import DatabaseError

PAUSE_S = 0.05
LIMIT_S = 10.0
_RELATIVE = 1e-5  # the service may compute concurrent requests as one batch, which changes the last bits
# Errors that a client may see while its server or service is disturbed: no service or no server (57P), a broken
# connection (08), a full disk or no free connection (53), an I/O error (58030), its own time limits (57014, 55P03).
_OUTAGES = ("57P", "08", "53", "57014", "55P03", "58030")
_NO_CONNECTION = "no connection"


def is_outage(sqlstate: str) -> bool:
    """Return whether a SQLSTATE says that the server or the service does not answer now."""
    return sqlstate == _NO_CONNECTION or sqlstate.startswith(_OUTAGES)


class Client:
    """Requests predictions on a thread of its own, from `start` until `stop`."""

    def __init__(self, rig: ChaosRig, trainings: Sequence[Training], references: Mapping[str, Reference]) -> None:
        self._rig = rig
        self._requests = cycle(
            (training, row, expected)
            for training in trainings
            for row, expected in references[training.name].predictions
        )
        self._connections: dict[str, Connection] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._request_repeatedly, name="client", daemon=True)
        self.answers = 0
        self.wrong: list[str] = []
        self.errors: Counter[str] = Counter()  # by SQLSTATE
        self.faults: list[str] = []  # errors that do not mean an outage
        self.longest_s = 0.0  # over the requests that were answered

    def start(self) -> None:
        """Begin to send requests."""
        self._thread.start()

    def stop(self) -> None:
        """Stop sending requests and close the connections."""
        self._stopped.set()
        self._thread.join()
        for connection in self._connections.values():
            connection.close()

    def _request_repeatedly(self) -> None:
        while not self._stopped.wait(PAUSE_S):
            training, row, expected = next(self._requests)
            started_s = time.monotonic()
            try:
                answer = self._predict(training, row)
            except (psycopg.Error, DatabaseError) as error:
                self._count(training.owner, error)
                continue
            self.answers += 1
            self.longest_s = max(self.longest_s, time.monotonic() - started_s)
            if not isclose(answer, expected, rel_tol=_RELATIVE):
                self.wrong.append(f"{training.name} of {row} is {expected}, and {answer} was the answer")

    def _predict(self, training: Training, row: str) -> float:
        connection = self._connections.get(training.owner)
        if connection is None:
            connection = connect(self._rig.dsn(training.owner), application_name=PURPOSE)
            self._connections[training.owner] = connection
            connection.execute(SQL["bound_time"])
        prediction = connection.execute(SQL["predict"].encode(), {"model": training.name, "row": row}).fetchone()
        assert prediction is not None
        return float(prediction[0])

    def _count(self, owner: str, error: psycopg.Error | DatabaseError) -> None:
        state = (error.sqlstate if isinstance(error, psycopg.Error) else None) or _NO_CONNECTION
        self.errors[state] += 1
        if not is_outage(state):
            self.faults.append(f"{state}: {error}")
        if state in (_NO_CONNECTION, "57P01", "57P02"):
            connection = self._connections.pop(owner, None)
            if connection is not None:
                with suppress(psycopg.Error):
                    connection.close()
