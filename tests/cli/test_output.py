"""Check the output of commands: tables, JSON, and no terminal control characters."""

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.cli.output import cell, duration, plain, print_json, show_one, show_rows


@pytest.mark.parametrize(
    ("seconds", "text"), [(-3, "0 s"), (0.4, "0 s"), (59.4, "59 s"), (59.6, "1:00"), (125, "2:05"), (3609, "1:00:09")]
)
def test_duration_is_formatted_like_a_clock(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("note", None, ""),
        ("peak_bytes", 1536, "1.5 kB"),
        ("deployed", True, "yes"),
        ("took", timedelta(seconds=75), "1:15"),
        ("at", datetime(2026, 1, 2, 3, 4, 5, 6, UTC), "2026-01-02 03:04:05"),
        ("loss", 0.123456789, "0.1235"),
        ("ms", Decimal("3.14159"), "3.142"),
        ("spec", {"ä": [1]}, '{"ä": [1]}'),
        ("faults", ["\ud800", "x\u202egnp"], '["\\ud800", "x\\u202egnp"]'),
        ("error", "one\ntwo\x1b[31m", "one two\\x1b[31m"),
        ("relation", "x\u202egnp", "x\\u202egnp"),
    ],
)
def test_value_is_formatted_for_people(name: str, value: object, text: str) -> None:
    assert cell(name, value) == text


@given(st.text())
def test_text_from_a_database_contains_no_terminal_control(text: str) -> None:
    assert not any(ord(character) < 32 or 127 <= ord(character) < 160 for character in plain(text))


def test_json_has_one_line_for_each_row_and_only_finite_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    rows = [
        {"loss": float("nan"), "ratio": Decimal("0.5"), "at": moment, "took": timedelta(seconds=1.5)},
        {"loss": float("inf"), "text": "[bold]x[/]\n", "spec": {"a": [float("nan"), None]}},
    ]
    show_rows(rows, as_json=True)
    printed = [json.loads(line, parse_constant=pytest.fail) for line in capsys.readouterr().out.splitlines()]
    assert printed == [
        {"loss": None, "ratio": 0.5, "at": "2026-01-02T00:00:00+00:00", "took": 1.5},
        {"loss": None, "text": "[bold]x[/]\n", "spec": {"a": [None, None]}},
    ]


def test_table_in_a_file_is_not_folded_and_shows_markup_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows([{"job_id": 7, "note": "[red]" + "long " * 100 + "[/oops]"}], as_json=False)
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split() == ["job", "id", "note"]
    assert row.rstrip() == "     7  [red]" + "long " * 100 + "[/oops]"


def test_no_rows_print_a_message_on_stderr_only_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows([], as_json=False, empty="no job yet")
    show_rows([], as_json=True, empty="no job yet")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "no job yet\n")


def test_object_is_printed_with_one_value_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    show_one({"job_id": 7, "model": "[b]", "error": None}, as_json=False)
    assert capsys.readouterr().out.splitlines() == ["job_id  7", "model   [b]"]


def test_json_of_an_object_contains_null_values(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"job_id": 7, "error": None})
    assert capsys.readouterr().out == '{"job_id": 7, "error": null}\n'
