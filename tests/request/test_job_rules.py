"""Limits of a job, and arguments that do not work yet."""

from typing import Any

import pytest

from indb_tensile import sql_api
from indb_tensile.errors import RequestError, UnsupportedError
from indb_tensile.request.job_rules import (
    UNSUPPORTED,
    check_max_runtime,
    check_priority,
    refuse_unsupported,
)
from tests.sql_api.fakes import plpy_with


@pytest.mark.parametrize("name", UNSUPPORTED)
@pytest.mark.parametrize("value", ["", [], 0, False, "x"])
def test_every_value_of_an_argument_that_does_not_work_yet_is_refused_alike(name: str, value: Any) -> None:
    with pytest.raises(UnsupportedError) as caught:
        refuse_unsupported({name: value})
    error = caught.value
    assert (error.sqlstate, error.message) == ("0A000", f"{name} is not supported yet")
    assert error.hint == UNSUPPORTED[name]
    refuse_unsupported({name: None})


@pytest.mark.parametrize("verb", ["train", "explain"])
@pytest.mark.parametrize("name", UNSUPPORTED)
def test_it_is_refused_before_anything_else_is_looked_at(verb: str, name: str) -> None:
    plpy = plpy_with(transaction=[{"read_only": True, "standby": True}], key=[{"job_id": 9}])

    answer = sql_api.handle(plpy, verb, {"idempotency_key": "k", name: "x"})

    assert (answer["error"]["sqlstate"], answer["error"]["hint"]) == ("0A000", UNSUPPORTED[name])
    assert plpy.executed == []


def test_a_runtime_is_a_whole_number_of_seconds_or_none() -> None:
    assert [check_max_runtime(seconds) for seconds in (None, 1, 90.7, 2**31 - 1)] == [None, 1, 90, 2**31 - 1]
    for seconds in (0, 0.5, -1, True, "60", 2**31):
        with pytest.raises(RequestError, match="max_runtime is"):
            check_max_runtime(seconds)


def test_a_priority_is_bounded_on_both_sides() -> None:
    assert [check_priority(value) for value in (-1000, 0, 1000)] == [-1000, 0, 1000]
    for value in (-1001, 1001):
        with pytest.raises(RequestError, match=f"priority is {value}"):
            check_priority(value)
