"""Check the service's server in a thread of its own, with blocking clients, a fake model and a fake analyst."""

import logging
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from worker.serving import evaluation_requests
from worker.serving.identity import DatabaseIdentity
from worker.serving.requests import VERBS
from worker.serving.service_frames import MAX_FRAME_BYTES, PROTOCOL, frame

from .fakes import DEADLINE_S, IDENTITY, Client, wait_until
from .server_thread import ServerThread, predict


@pytest.fixture
def running(tmp_path: Path) -> Iterator[ServerThread]:
    server = ServerThread(tmp_path / "sockets", os.geteuid())
    yield server
    server.stop()


SPEC = {
    "model": "m",
    "relation": {"oid": 1, "schema": "public", "name": "t"},
    "target": "y",
    "task": "regression",
    "architecture": {"type": "mlp"},
}


def test_client_sends_several_requests_on_one_connection(running: ServerThread) -> None:
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
        "readings": 0,
    }


@pytest.mark.parametrize("body", [b"", b"not json", b"[]", b'{"verb": "shutdown"}', b'{"verb": "predict"}'])
def test_malformed_body_is_answered_and_the_connection_stays_open(running: ServerThread, body: bytes) -> None:
    with Client(running.path) as client:
        client.send(body)
        answer = client.receive()
        assert answer["ok"] is False
        assert answer["error"]["sqlstate"] == "08P01"
        assert predict(client, 1)["ok"]


def test_too_long_frame_is_answered_and_the_connection_closed(running: ServerThread) -> None:
    with Client(running.path) as client:
        client.send_raw((MAX_FRAME_BYTES + 1).to_bytes(4, "big") + b"x" * 1000)
        assert client.receive()["error"]["sqlstate"] == "08P01"
        assert client.ended()
    with Client(running.path) as other_client:
        assert predict(other_client, 1)["ok"]


def test_pipelined_requests_are_answered_in_order(running: ServerThread) -> None:
    with Client(running.path) as client:
        bodies = [client.body("predict", version=1, rows=[n]) for n in range(50)]
        client.send_raw(b"".join(frame(body) for body in bodies))
        answers = [client.receive()["result"]["values"] for _ in bodies]
    assert answers == [[n] for n in range(50)]


OTHER = DatabaseIdentity(installation="ffffffff-89ab-cdef-0123-456789abcdef", server_start="1")

RESTARTED = replace(IDENTITY, server_start="2")


def test_greeting_names_database_version_and_protocol(running: ServerThread) -> None:
    with Client(running.path) as client:
        assert client.greet() == {"protocol": PROTOCOL, "version": "1.2", "installation": IDENTITY.installation}


@pytest.mark.parametrize("verb", VERBS)
def test_every_request_of_another_database_is_refused(running: ServerThread, verb: str) -> None:
    fields = {"version": 1, "rows": [], "name": "digits", "columns": [], "spec": SPEC}
    if verb == "read":
        fields |= {
            "kind": "table",
            "oid": 1,
            "schema": "public",
            "relation": "t",
            "keys": [],
            "server_version": 150000,
        }
        fields |= {"role": 10, "snapshot": "1-1-1", "transaction": "1/1", "pid": 1}
    for other in (OTHER, DatabaseIdentity(installation="", server_start="")):
        with Client(running.path, other) as client:
            error = client.ask(verb, **fields)["error"]
            assert (error["sqlstate"], error["message"]) == (
                "57P03",
                "this service belongs to another database",
            )
    assert (running.model.passes, running.analyst.requests, running.identity_reads) == ([], [], 0)


def test_request_from_a_copy_of_the_data_directory_is_refused(running: ServerThread) -> None:
    with Client(running.path, RESTARTED) as copy, Client(running.path) as own:
        assert "one is a copy" in predict(copy, 1)["error"]["detail"]
        assert predict(own, 1)["ok"]


def test_only_sessions_after_a_restart_of_the_database_are_answered(running: ServerThread) -> None:
    with Client(running.path) as before, Client(running.path, RESTARTED) as after:
        assert predict(before, 1)["ok"]
        running.database = RESTARTED
        assert [predict(after, n)["ok"] for n in range(3)] == [True] * 3
        assert running.identity_reads == 1
        assert not predict(before, 1)["ok"]


def evaluate(client: Client, part: int, count: int, *, last: bool, evaluation: int = 1) -> Any:
    rows = [{"a": float(part), "y": 0.0}] * count
    return client.ask("evaluate", version=1, rows=rows, evaluation=evaluation, part=part, last=last)


def test_last_part_of_an_evaluation_is_answered_with_the_metrics_of_all_parts(running: ServerThread) -> None:
    with Client(running.path) as client:
        assert evaluate(client, 0, 20, last=False)["result"] == {"rows": 20}
        assert predict(client, 7)["result"] == {"values": [7]}
        assert evaluate(client, 0, 5, last=False, evaluation=2)["result"] == {"rows": 5}
        assert evaluate(client, 1, 30, last=False)["result"] == {"rows": 50}
        assert evaluate(client, 2, 1, last=True)["result"] == {"metrics": {"rows": 51.0, "error": 32.0}}
        wish = {"figure": "roc_curve", "options": {"label": "x"}}
        rows = [{"a": 1, "y": 1}]
        assert client.ask("evaluate", version=1, rows=rows, **wish)["result"] == {"rows": [["roc_curve", "x", 1]]}


def test_evaluation_belongs_to_its_connection_and_ends_with_it(running: ServerThread) -> None:
    with Client(running.path) as client:
        evaluate(client, 0, 3, last=False)
        with Client(running.path) as other:
            assert evaluate(other, 1, 3, last=True)["error"]["sqlstate"] == "57P03"
        assert evaluate(client, 2, 3, last=True)["error"]["sqlstate"] == "57P03"
        assert evaluate(client, 1, 3, last=True)["error"]["sqlstate"] == "57P03"
        evaluate(client, 0, 3, last=False)
        assert len(running.front._evaluations) == 1
    wait_until(lambda: len(running.front._evaluations) == 0)


def test_too_large_evaluation_is_refused_with_the_limit(
    running: ServerThread, monkeypatch: pytest.MonkeyPatch
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


def test_too_deeply_nested_row_is_refused(running: ServerThread) -> None:
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


def test_error_has_sqlstate_detail_and_hint(running: ServerThread) -> None:
    with Client(running.path) as client:
        assert client.ask("dataset", name="fault")["error"] == {
            "sqlstate": "22000",
            "message": "row 3: no",
            "detail": "a is missing",
            "hint": "give a",
        }
        assert client.ask("predict", version=404, rows=[1])["error"]["message"] == "there is no version 404"


def test_internal_fault_is_reported_and_logged_and_the_service_continues(
    running: ServerThread, caplog: pytest.LogCaptureFixture
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


def test_prediction_is_answered_while_the_analyst_works(running: ServerThread) -> None:
    with Client(running.path) as waiting_client, Client(running.path) as quick_client:
        waiting_client.request("dataset", name="digits")
        wait_until(lambda: running.analyst.requests != [])
        assert predict(quick_client, 1)["ok"]
        running.analyst.gate.set()
        assert waiting_client.receive()["result"] == "slow"


def test_request_is_cancelled_when_its_client_disconnects(running: ServerThread) -> None:
    client = Client(running.path)
    client.request("dataset", name="digits")
    wait_until(lambda: running.analyst.requests != [])
    client.close()
    wait_until(lambda: running.analyst.abandoned == 1)
    wait_until(lambda: running.server.connection_count == 0)


def test_client_that_disconnects_within_a_frame_leaves_no_connection(running: ServerThread) -> None:
    client = Client(running.path)
    client.send_raw(frame(b'{"verb": "ping"}')[:9])
    wait_until(lambda: running.server.connection_count == 1)
    client.close()
    wait_until(lambda: running.server.connection_count == 0)


def test_client_that_disconnects_during_a_prediction_disturbs_no_other_client(running: ServerThread) -> None:
    running.model.gate.clear()
    leaving_client = Client(running.path)
    leaving_client.request("predict", version=1, rows=["leaving"])
    assert running.model.entered.wait(DEADLINE_S)
    with Client(running.path) as staying_client:
        staying_client.request("predict", version=1, rows=["staying"])
        leaving_client.close()
        wait_until(lambda: running.server.connection_count == 1)
        running.model.gate.set()
        assert staying_client.receive()["result"] == {"values": ["staying"]}


def test_64_concurrent_clients_get_their_own_answers_in_fewer_batches(running: ServerThread) -> None:
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
        wait_until(lambda: len(running.batches) == len(clients))
        running.model.gate.set()
        assert first.receive()["result"] == {"values": ["first"]}
        assert [answer.result() for answer in answers] == [
            [[number, turn] for turn in range(5)] for number in range(len(clients))
        ]
        state = first.ask("ping")["result"]
    for client in clients:
        client.close()
    # The first request of each client arrived before the time of a row was known, and was computed in two parts.
    assert (state["requests"], state["rows"]) == (1 + 64 * 6, 1 + 64 * 5 * 2)
    assert state["batches"] <= 1 + 2 + 64 * 5  # of the 64 first parts, 4 were one batch and the rest another


def test_connection_of_another_system_user_is_refused_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    other = ServerThread(tmp_path / "sockets", os.geteuid() + 1)
    try:
        for _ in range(5):
            with Client(other.path) as client:
                assert client.ended()
        assert other.server.connection_count == 0
    finally:
        other.stop()
    counts = [record.args[1] for record in caplog.records if isinstance(record.args, tuple)]
    assert counts == [1, 2, 4]


def test_stop_lets_a_running_request_finish(running: ServerThread) -> None:
    running.model.gate.clear()
    with Client(running.path) as client:
        client.request("predict", version=1, rows=[1])
        assert running.model.entered.wait(DEADLINE_S)
        running.begin_stop()
        wait_until(lambda: not running.path.exists())
        running.model.gate.set()
        assert client.receive()["result"] == {"values": [1]}
        assert client.ended()


def test_stop_cancels_a_request_that_does_not_end(running: ServerThread) -> None:
    with Client(running.path) as client:
        client.request("dataset", name="digits")
        wait_until(lambda: running.analyst.requests != [])
        running.begin_stop()
        assert client.ended()
    assert not running.path.exists()
