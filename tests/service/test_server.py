"""The server alone, on a thread of its own, with blocking clients."""

import asyncio
import logging
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from indb_tensile.errors import DataError
from indb_tensile.job import ModelVersionId
from worker.serving import evaluation_requests
from worker.serving.dispatch import RequestDispatcher
from worker.serving.endpoint import Endpoint
from worker.serving.identity import DatabaseIdentity, IdentityCheck
from worker.serving.model_cache import CachedModel, ModelCache
from worker.serving.prediction_batches import Batches
from worker.serving.requests import VERBS, greeting
from worker.serving.server import Server
from worker.serving.service_frames import MAX_FRAME_BYTES, PROTOCOL, frame

from .fakes import DEADLINE_S, IDENTITY, Client, Echo, eventually


class Slow:
    """An analyst that answers when its gate opens, and knows who gave up waiting."""

    pid = 4711

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.asked: list[bytes] = []
        self.abandoned = 0

    async def ask(self, body: bytes) -> bytes:
        self.asked.append(body)
        if b'"fault"' in body:
            raise DataError("row 3: no", detail="a is missing", hint="give a")
        if b'"crash"' in body:
            raise ZeroDivisionError("one by nought")
        try:
            while not self.gate.is_set():
                await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            self.abandoned += 1
            raise
        return b'{"ok":true,"result":"slow"}'


class Running:
    """A server with an echoing model and a slow analyst."""

    def __init__(self, directory: Path, allowed_uid: int) -> None:
        self.model = Echo()
        self.analyst = Slow()
        self.database = IDENTITY
        self.looks = 0  # how often it looked which database it is
        self.path = directory / "worker-1.sock"
        self._directory = directory
        self._allowed_uid = allowed_uid
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))
        self._thread.start()
        assert self._started.wait(DEADLINE_S)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self.batches = Batches(lambda: 0)
        self.front = RequestDispatcher(
            gate=IdentityCheck(IDENTITY, self._identity),
            residents=ModelCache(self._load, 100),
            batches=self.batches,
            analyst=self.analyst,
            code_version="1.2",
        )
        self.server = Server(
            Endpoint(self._directory, "worker-1"),
            allowed_uid=self._allowed_uid,
            greeting=greeting(IDENTITY.installation, "1.2"),
            handle=self.front.handle,
            forget=self.front.forget,
        )
        await self.server.start()
        self._started.set()
        await self._stopping.wait()
        await self.server.stop(grace_s=0.5)
        self.batches.close()
        self.front.close()

    async def _identity(self) -> DatabaseIdentity:
        self.looks += 1
        return self.database

    async def _load(self, version: ModelVersionId) -> CachedModel:
        if version == 404:
            raise DataError("there is no version 404")
        return CachedModel(model=self.model, size_bytes=10)

    def begin_stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)

    def stop(self) -> None:
        self.model.gate.set()
        with suppress(RuntimeError):  # the test has stopped it already: its loop is closed
            self.begin_stop()
        self._thread.join(DEADLINE_S)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    made = Running(tmp_path / "sockets", os.geteuid())
    yield made
    made.stop()


SPEC = {
    "model": "m",
    "relation": {"oid": 1, "schema": "public", "name": "t"},
    "target": "y",
    "task": "regression",
    "architecture": {"type": "mlp"},
}


def predict(client: Client, *rows: Any) -> Any:
    return client.ask("predict", version=1, rows=list(rows), kind="value")


def test_a_client_asks_again_and_again_on_one_connection(running: Running) -> None:
    with Client(running.path) as client:
        assert predict(client, 1) == {"ok": True, "result": {"values": [1]}}
        assert client.ask("predict", version=1, rows=[2], kind="label")["result"] == {"values": ["label 2"]}
        state = client.ask("ping")["result"]
    assert state == {
        "version": "1.2",
        "pid": os.getpid(),
        "analyst_pid": 4711,
        "models": [1],
        "resident_bytes": 10,
        "requests": 2,
        "batches": 2,
        "rows": 2,
    }


@pytest.mark.parametrize("body", [b"", b"not json", b"[]", b'{"verb": "shutdown"}', b'{"verb": "predict"}'])
def test_a_malformed_body_is_answered_and_the_connection_goes_on(running: Running, body: bytes) -> None:
    with Client(running.path) as client:
        client.send(body)
        answer = client.receive()
        assert answer["ok"] is False
        assert answer["error"]["sqlstate"] == "08P01"
        assert predict(client, 1)["ok"]


def test_a_frame_that_is_too_long_is_answered_and_the_connection_ends(running: Running) -> None:
    with Client(running.path) as client:
        client.send_raw((MAX_FRAME_BYTES + 1).to_bytes(4, "big") + b"x" * 1000)
        assert client.receive()["error"]["sqlstate"] == "08P01"
        assert client.ended()
    with Client(running.path) as another:
        assert predict(another, 1)["ok"]


def test_requests_sent_ahead_are_answered_in_their_order(running: Running) -> None:
    with Client(running.path) as client:
        bodies = [client.body("predict", version=1, rows=[n]) for n in range(50)]
        client.send_raw(b"".join(frame(body) for body in bodies))
        answers = [client.receive()["result"]["values"] for _ in bodies]
    assert answers == [[n] for n in range(50)]


OTHER = DatabaseIdentity(installation="ffffffff-89ab-cdef-0123-456789abcdef", server_start="1")
RESTARTED = replace(IDENTITY, server_start="2")


def test_it_greets_with_its_database_its_version_and_its_protocol(running: Running) -> None:
    with Client(running.path) as client:
        assert client.greet() == {"protocol": PROTOCOL, "version": "1.2", "installation": IDENTITY.installation}


@pytest.mark.parametrize("verb", VERBS)
def test_a_request_of_another_database_is_refused_whatever_it_asks(running: Running, verb: str) -> None:
    fields = {"version": 1, "rows": [], "name": "digits", "columns": [], "spec": SPEC}
    for other in (OTHER, DatabaseIdentity(installation="", server_start="")):
        with Client(running.path, other) as client:
            error = client.ask(verb, **fields)["error"]
            assert (error["sqlstate"], error["message"]) == (
                "57P03",
                "this service belongs to another database",
            )
    assert (running.model.passes, running.analyst.asked, running.looks) == ([], [], 0)


def test_a_request_from_a_copy_of_the_data_directory_is_refused(running: Running) -> None:
    with Client(running.path, RESTARTED) as copy, Client(running.path) as own:
        assert "one is a copy" in predict(copy, 1)["error"]["detail"]
        assert predict(own, 1)["ok"]


def test_after_a_restart_of_the_database_it_answers_its_new_sessions_only(running: Running) -> None:
    with Client(running.path) as before, Client(running.path, RESTARTED) as after:
        assert predict(before, 1)["ok"]
        running.database = RESTARTED
        assert [predict(after, n)["ok"] for n in range(3)] == [True] * 3
        assert running.looks == 1
        assert not predict(before, 1)["ok"]


def evaluate(client: Client, part: int, count: int, *, last: bool, evaluation: int = 1) -> Any:
    rows = [{"a": float(part), "y": 0.0}] * count
    return client.ask("evaluate", version=1, rows=rows, evaluation=evaluation, part=part, last=last)


def test_an_evaluation_comes_in_parts_and_its_last_answer_has_the_metrics_of_all(running: Running) -> None:
    with Client(running.path) as client:
        assert evaluate(client, 0, 20, last=False)["result"] == {"rows": 20}
        assert predict(client, 7)["result"] == {"values": [7]}
        assert evaluate(client, 0, 5, last=False, evaluation=2)["result"] == {"rows": 5}
        assert evaluate(client, 1, 30, last=False)["result"] == {"rows": 50}
        assert evaluate(client, 2, 1, last=True)["result"] == {"metrics": {"rows": 51.0, "error": 32.0}}


def test_an_evaluation_ends_with_its_connection_and_no_part_is_taken_for_anothers(running: Running) -> None:
    with Client(running.path) as client:
        evaluate(client, 0, 3, last=False)
        with Client(running.path) as other:
            assert evaluate(other, 1, 3, last=True)["error"]["sqlstate"] == "57P03"
        assert evaluate(client, 2, 3, last=True)["error"]["sqlstate"] == "57P03"
        assert evaluate(client, 1, 3, last=True)["error"]["sqlstate"] == "57P03"
        evaluate(client, 0, 3, last=False)
        assert len(running.front._evaluations) == 1
    eventually(lambda: len(running.front._evaluations) == 0)


def test_an_evaluation_that_would_take_too_much_memory_is_refused_with_numbers(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation_requests, "MOST_NUMBERS", 30)
    with Client(running.path) as client:
        assert evaluate(client, 0, 20, last=False)["ok"]
        error = evaluate(client, 1, 20, last=False)["error"]
    assert (error["sqlstate"], error["message"]) == (
        "54000",
        "the relation has more rows than the 30 that one evaluation may have of a model with 1 output",
    )
    assert error["hint"].startswith("Name a sample of it with relation => '...'")


def test_a_row_that_is_nested_too_deep_is_refused(running: Running) -> None:
    with Client(running.path) as client:
        for depth in (990, 100_000):
            body = client.body("predict", version=1).removesuffix(b"}")
            client.send(body + b', "rows": [' + b"[" * depth + b"]" * depth + b"]}")
            error = client.receive()["error"]
            assert (error["sqlstate"], error["hint"]) == (
                "22023",
                "Give lists and objects that are nested less deep.",
            )
        assert predict(client, 1)["ok"]


def test_an_error_carries_sqlstate_detail_and_hint_to_the_client(running: Running) -> None:
    with Client(running.path) as client:
        assert client.ask("dataset", name="fault")["error"] == {
            "sqlstate": "22000",
            "message": "row 3: no",
            "detail": "a is missing",
            "hint": "give a",
        }
        assert client.ask("predict", version=404, rows=[1])["error"]["message"] == "there is no version 404"


def test_a_fault_of_ours_is_told_and_logged_and_the_service_goes_on(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    with Client(running.path) as client:
        error = client.ask("dataset", name="crash")["error"]
        assert (error["sqlstate"], error["message"]) == (
            "XX000",
            "the service failed: ZeroDivisionError: one by nought",
        )
        assert predict(client, 1)["ok"]
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert record.exc_info is not None


def test_a_prediction_is_answered_while_the_analyst_works(running: Running) -> None:
    with Client(running.path) as patient, Client(running.path) as quick:
        patient.request("dataset", name="digits")
        eventually(lambda: running.analyst.asked != [])
        assert predict(quick, 1)["ok"]
        running.analyst.gate.set()
        assert patient.receive()["result"] == "slow"


def test_a_client_that_leaves_takes_its_request_with_it(running: Running) -> None:
    client = Client(running.path)
    client.request("dataset", name="digits")
    eventually(lambda: running.analyst.asked != [])
    client.close()
    eventually(lambda: running.analyst.abandoned == 1)
    eventually(lambda: running.server.connection_count == 0)


def test_a_client_that_leaves_in_the_middle_of_a_frame_leaves_nothing(running: Running) -> None:
    client = Client(running.path)
    client.send_raw(frame(b'{"verb": "ping"}')[:9])
    eventually(lambda: running.server.connection_count == 1)
    client.close()
    eventually(lambda: running.server.connection_count == 0)


def test_a_client_that_leaves_during_its_prediction_disturbs_nobody(running: Running) -> None:
    running.model.gate.clear()
    leaving = Client(running.path)
    leaving.request("predict", version=1, rows=["leaving"])
    assert running.model.entered.wait(DEADLINE_S)
    with Client(running.path) as staying:
        staying.request("predict", version=1, rows=["staying"])
        leaving.close()
        eventually(lambda: running.server.connection_count == 1)
        running.model.gate.set()
        assert staying.receive()["result"] == {"values": ["staying"]}


def test_sixty_four_clients_at_once_get_their_own_answers_in_fewer_batches(running: Running) -> None:
    clients = [Client(running.path) for _ in range(64)]
    barrier = threading.Barrier(len(clients))

    def ask(number: int) -> list[Any]:
        barrier.wait(DEADLINE_S)
        return [predict(clients[number], number, turn)["result"]["values"] for turn in range(5)]

    running.model.gate.clear()
    with Client(running.path) as first, ThreadPoolExecutor(len(clients)) as pool:
        first.request("predict", version=1, rows=["first"])
        assert running.model.entered.wait(DEADLINE_S)
        answers = [pool.submit(ask, number) for number in range(len(clients))]
        eventually(lambda: len(running.batches) == len(clients))
        running.model.gate.set()
        assert first.receive()["result"] == {"values": ["first"]}
        assert [answer.result() for answer in answers] == [
            [[number, turn] for turn in range(5)] for number in range(len(clients))
        ]
        state = first.ask("ping")["result"]
    for client in clients:
        client.close()
    # The first request of each client came before a row's time was known, and went in two parts.
    assert (state["requests"], state["rows"]) == (1 + 64 * 6, 1 + 64 * 5 * 2)
    assert state["batches"] <= 1 + 2 + 64 * 5  # of the 64 first parts, 4 were one batch and the others another


def test_another_system_users_connection_is_refused_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    other = Running(tmp_path / "sockets", os.geteuid() + 1)
    try:
        for _ in range(5):
            with Client(other.path) as client:
                assert client.ended()
        assert other.server.connection_count == 0
    finally:
        other.stop()
    counts = [record.args[1] for record in caplog.records if isinstance(record.args, tuple)]
    assert counts == [1, 2, 4]


def test_when_it_stops_a_request_in_work_is_still_answered(running: Running) -> None:
    running.model.gate.clear()
    with Client(running.path) as client:
        client.request("predict", version=1, rows=[1])
        assert running.model.entered.wait(DEADLINE_S)
        running.begin_stop()
        eventually(lambda: not running.path.exists())
        running.model.gate.set()
        assert client.receive()["result"] == {"values": [1]}
        assert client.ended()


def test_when_it_stops_a_request_that_does_not_end_is_given_up(running: Running) -> None:
    with Client(running.path) as client:
        client.request("dataset", name="digits")
        eventually(lambda: running.analyst.asked != [])
        running.begin_stop()
        assert client.ended()
    assert not running.path.exists()
