"""Sizes and durations as PostgreSQL writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.units import parse_bytes, parse_seconds


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("1536", 1536),
        ("512kB", 512 << 10),
        ("1.5 GB", 3 << 29),
        ("2GiB", 2 << 30),
        ("1TB", 1 << 40),
        ("7B", 7),
        ("9007199254740993kB", 9007199254740993 << 10),
    ],
)
def test_sizes_are_read_as_postgresql_does(text: str, size_bytes: int) -> None:
    assert parse_bytes(text) == size_bytes


@given(st.integers(0, 1 << 70))
def test_a_plain_number_is_bytes(size_bytes: int) -> None:
    assert parse_bytes(str(size_bytes)) == size_bytes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("15", 15.0),
        ("0.5", 0.5),
        ("15s", 15.0),
        (" 10 min ", 600.0),
        ("1.5h", 5400.0),
        ("2d", 172_800.0),
        ("250ms", 0.25),
        ("100us", 0.0001),
        ("-3", -3.0),
    ],
)
def test_durations_are_read_as_postgresql_does(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "15 S", "10m", "1 s 500 ms", "nan", "inf", "1e999", "15sec"])
def test_other_text_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError):
        parse_seconds(text)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_plain_number_is_seconds(seconds: float) -> None:
    assert parse_seconds(str(seconds)) == seconds
