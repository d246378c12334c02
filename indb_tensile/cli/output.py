"""Prints the output of commands: data on stdout, as tables or as JSON, and all other text on stderr."""

import json
import math
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from indb_tensile.log import escaped
from indb_tensile.sizes import size

out = Console(soft_wrap=True, highlight=False)
err = Console(stderr=True, soft_wrap=True, highlight=False)

Row = dict[str, Any]

_BYTES = "_bytes"
_WIDE = 10_000  # columns, so that lines in a file or a pipe are never folded
_unbounded = Console(width=_WIDE)
_NUMERIC = (int, float, Decimal)
_SPACES = str.maketrans("\n\t", "  ")


def show_rows(rows: Sequence[Row], *, as_json: bool, empty: str = "nothing to show") -> None:
    """Print rows: as a table, or with `as_json` as one JSON object a line.

    In a terminal that is too narrow for the table, each row is a block of lines. `empty` is printed if there are no
    rows.
    """
    if as_json:
        for row in rows:
            print_json(row)
        return
    if not rows:
        warn(empty)
        return
    table = make_table(rows)
    if out.is_terminal and Measurement.get(_unbounded, _unbounded.options, table).maximum > out.width:
        for number, row in enumerate(rows):
            if number:
                out.print()
            show_one(row, as_json=False)
        return
    (out if out.is_terminal else _unbounded_out()).print(table)


def show_one(row: Row, *, as_json: bool) -> None:
    """Print one row: one name and value a line, without nulls, or with `as_json` as one JSON object."""
    if as_json:
        print_json(row)
        return
    values = {name: value for name, value in row.items() if value is not None}
    width = max(map(len, values), default=0)
    for name, value in values.items():
        out.print(Text(f"{name:<{width}}", style="bold"), Text(cell(name, value)), sep="  ")


def print_json(row: Row) -> None:
    """Print a row as one line of JSON. The line is flushed, because a program may be reading the output meanwhile."""
    print(json.dumps({name: _plain(value) for name, value in row.items()}), flush=True)


def make_table(rows: Sequence[Row]) -> Table:
    """Return a table with a column for each key of the first row. Columns of numbers are aligned to the right."""
    table = Table(header_style="bold", box=None, pad_edge=False)
    for name in rows[0]:
        numeric = all(
            isinstance(row[name], (*_NUMERIC, type(None))) and not isinstance(row[name], bool) for row in rows
        )
        table.add_column(_heading(name), justify="right" if numeric else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell(name, value)) for name, value in row.items()))
    return table


def cell(name: str, value: object) -> str:
    """Format one value on one line, for people. The name of the column tells the unit."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith(_BYTES) and isinstance(value, _NUMERIC):
        return size(int(value))
    if name == "byte_seconds" and isinstance(value, _NUMERIC):
        return f"{size(int(value))} s"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    if isinstance(value, timedelta):
        return duration(value.total_seconds())
    if isinstance(value, float | Decimal):
        return f"{float(value):.4g}"
    if isinstance(value, dict | list):
        return plain(json.dumps(value, default=str, ensure_ascii=False))
    return plain(str(value))


def plain(text: str) -> str:
    """Make text from a database safe for a terminal: on one line, and without control sequences."""
    return escaped(text.translate(_SPACES))


def duration(seconds: float) -> str:
    """Format a number of seconds as `7 s`, `2:05` or `1:00:09`."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02d}:{rest:02d}"
    return f"{minutes}:{rest:02d}" if minutes else f"{rest} s"


def warn(text: str) -> None:
    """Print a line for the user on stderr."""
    print(text, file=sys.stderr)


def _unbounded_out() -> Console:
    return Console(width=_WIDE, highlight=False, file=sys.stdout)


def _heading(name: str) -> str:
    return name.removesuffix(_BYTES).replace("_", " ")


def _plain(value: object) -> object:
    """Convert a value to JSON types: NaN and infinities to null, times to ISO 8601, intervals to seconds."""
    match value:
        case bool() | int() | str() | None:
            return value
        case float() | Decimal():
            return float(value) if math.isfinite(value) else None
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case dict():
            return {str(name): _plain(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case _:
            return str(value)
