"""Check how the bridge exchanges frames with a service: one connection, large frames, and a cancel."""

from typing import Any

import pytest

from indb_tensile import sql_api
from indb_tensile.sql_api import service_connection
from tests.sql.fakes import result
from tests.sql_api.conftest import Serve

PREDICT = {"model": "m", "rows": [b"1", None, b"3"], "kind": "value"}


def error_of(answer: dict[str, Any]) -> tuple[str, str]:
    assert answer["ok"] is False
    return answer["error"]["sqlstate"], answer["error"]["message"]


def test_broken_connection_is_opened_again_once(serve: Serve) -> None:
    fake, plpy = serve(lambda _: result({"values": [1, 2]}))
    sql_api.handle(plpy, "predict", PREDICT)
    fake.drop_connections()

    assert sql_api.handle(plpy, "predict", PREDICT)["ok"]
    fake.close()
    assert error_of(sql_api.handle(plpy, "predict", PREDICT)) == ("57P03", "no service answers")


def test_large_request_and_large_answer_arrive_whole(serve: Serve) -> None:
    _, plpy = serve(lambda request: result({"values": [[len(request["rows"][0]), "y" * 5_000_000]]}))

    answer = sql_api.handle(plpy, "predict", {"model": "m", "rows": [b'["%b"]' % (b"x" * 5_000_000)]})

    assert answer["result"] == {"values": [[1, "y" * 5_000_000]], "version": 1}


def test_too_large_request_is_refused_before_it_is_sent(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_connection, "_MAX_FRAME_BYTES", 400)
    fake, plpy = serve(lambda _: None)

    assert error_of(sql_api.handle(plpy, "predict", {"model": "m", "rows": [b"9" * 400]}))[0] == "54000"
    assert fake.requests == []


def test_cancel_ends_the_wait_and_the_late_answer_is_dropped(serve: Serve) -> None:
    fake, plpy = serve(lambda _: None)
    plpy.cancelled = True

    assert error_of(sql_api.handle(plpy, "predict", PREDICT)) == ("57014", "canceling statement due to user request")

    plpy.cancelled = False  # a slice of waiting may end before the fake answers, on a busy machine
    fake.answer = lambda _: result({"values": [1, 2]})
    first = fake.connections[0]
    assert sql_api.handle(plpy, "predict", PREDICT)["ok"]
    assert fake.connections[-1] is not first
