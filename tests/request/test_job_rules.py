"""Limits of a job, and the jobs that it depends on."""

import pytest

from indb_tensile.errors import RequestError
from indb_tensile.request.job_rules import check_depends_on, check_max_runtime, check_not_before, check_priority


def test_a_job_depends_on_a_short_list_of_job_numbers() -> None:
    assert [check_depends_on(value) for value in (None, [], [3, 1, 3])] == [None, None, [3, 1, 3]]
    for value in (0, "1", [0], [True], [1.0], ["1"], [None], [[1]], [2**63], list(range(1, 102))):
        with pytest.raises(RequestError, match="depends_on is ") as caught:
            check_depends_on(value)
        assert caught.value.detail
        assert caught.value.hint


def test_a_runtime_is_a_whole_number_of_seconds_or_none() -> None:
    assert [check_max_runtime(seconds) for seconds in (None, 1, 90.7, 2**31 - 1)] == [None, 1, 90, 2**31 - 1]
    for seconds in (0, 0.5, -1, True, "60", 2**31):
        with pytest.raises(RequestError, match="max_runtime is"):
            check_max_runtime(seconds)


def test_a_job_starts_some_day() -> None:
    times = [None, "-infinity", "2040-01-01T00:00:00+00:00"]
    assert [check_not_before(moment) for moment in times] == times
    with pytest.raises(RequestError, match="not_before is infinity, so the job would never start") as caught:
        check_not_before("infinity")
    assert "tensile_pause" in caught.value.hint


def test_a_priority_is_bounded_on_both_sides() -> None:
    assert [check_priority(value) for value in (-1000, 0, 1000)] == [-1000, 0, 1000]
    for value in (-1001, 1001):
        with pytest.raises(RequestError, match=f"priority is {value}"):
            check_priority(value)
