"""Intervals and times of day are read from the texts that PostgreSQL writes, and from no others."""

import math

import pytest

from indb_tensile.request.time_texts import parse_interval, parse_time_of_day


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("P1Y2M-3DT4H5M6.7S", 31_557_600 + 57 * 86_400 + 14_706.7),
        ("PT0S", 0.0),
        ("@ 1 year 2 mons 3 days ago", -31_557_600 - 63 * 86_400),
        ("@ 4 hours -5 mins 6.5 secs", 14_106.5),
        ("-1-2 +3 -4:05:06", -31_557_600 - 57 * 86_400 - 14_706),
        ("-3 4:05:06", -3 * 86_400 - 14_706),
        ("-00:00:00.000001", -1e-6),
        ("infinity", math.inf),
    ],
)
def test_an_interval_of_any_style_is_read(text: str, seconds: float) -> None:
    assert parse_interval(text) == seconds


@pytest.mark.parametrize("text", ["", "P", "5", "1 fortnight", "1:2", "x", "1 day;", "PT5"])
def test_a_text_that_is_no_interval_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an interval"):
        parse_interval(text)


@pytest.mark.parametrize("text", ["", "24:00:01", "1:00", "12:60", "12:00 PM", "25:00"])
def test_a_text_that_is_no_time_of_day_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a time of day"):
        parse_time_of_day(text)
