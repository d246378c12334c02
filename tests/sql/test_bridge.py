"""Check the bridge function in a real session: how faults are reported, and that a new version takes effect."""

from typing import Any

import pytest

from .conftest import Connection, Serve, refused, value
from .fakes import result

pytestmark = pytest.mark.postgres


@pytest.mark.usefixtures("published")
def test_fault_reports_its_place_and_the_session_continues(alice: Connection, serve: Serve) -> None:
    service = serve(lambda _: result({"predictions": [1.0]}))

    error = refused(alice, "select tensile_predict('flowers', 1)")

    assert (error.sqlstate, error.message) == ("XX000", "the bridge failed: KeyError: 'values'")
    assert 'predictions.py", line ' in (error.detail or "")
    assert 'answer["values"]' in (error.detail or "")
    assert error.hint == "This is a fault of indb-tensile: report it together with the DETAIL."
    service.answer = lambda _: result({"values": [1.0]})
    assert value(alice, "select tensile_predict('flowers', 1)") == 1.0


def test_session_uses_a_new_version_of_the_bridge(admin: Connection) -> None:
    def message() -> Any:
        return value(admin, "select tensile.bridge('nothing', '{}') #>> '{error,message}'")

    before = message()
    admin.execute(
        """do $$ begin
             execute regexp_replace(
               replace(pg_get_functiondef('tensile.bridge'::regproc), 'has no such verb', 'is new'),
               'tensile_bridge_[0-9a-f]{16}', 'tensile_bridge_0123456789abcdef');
           end $$"""
    )

    assert (before, message()) == ("the bridge has no such verb", "the bridge is new")


def test_number_beyond_double_precision_is_refused(alice: Connection) -> None:
    error = refused(
        alice, """select tensile_train('m', 'iris', target => 'species', hyperparams => '{"clip_norm": 1e400}')"""
    )

    assert error.sqlstate == "22023"
    assert error.message.startswith('hyperparams: "clip_norm" is 1000')


def test_request_nested_too_deep_for_python_is_refused(alice: Connection) -> None:
    answer = value(alice, "select tensile.bridge('ping', (repeat('[', 5000) || repeat(']', 5000))::jsonb)")

    assert answer["error"]["sqlstate"] == "22023"
