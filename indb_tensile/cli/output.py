"""What commands print: tables for people, JSON for programs; data on stdout, the rest on stderr."""

import json
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

out = Console(soft_wrap=True, highlight=False)
err = Console(stderr=True, soft_wrap=True, highlight=False)

Row = dict[str, Any]

_BYTES = "_bytes"
_WIDE = 10_000  # columns: what goes to a file or a pipe is never folded
_unbounded = Console(width=_WIDE)
_NUMERIC = (int, float, Decimal)


def show_rows(rows: Sequence[Row], *, as_json: bool, title: str = "", empty: str = "nothing to show") -> None:
    """Print rows: with `as_json` one object a line, else a table."""
    if as_json:
        for row in rows:
            print(json.dumps(row, default=_plain))
        return
    if not rows:
        err.print(empty)
        return
    table = make_table(rows, title=title)
    if out.is_terminal and Measurement.get(_unbounded, _unbounded.options, table).maximum > out.width:
        for row in rows:
            show_one(row, as_json=False)
            out.print()
        return
    (out if out.is_terminal else _unbounded_out()).print(table)


def show_one(row: Row, *, as_json: bool) -> None:
    """Print one object: with `as_json` on one line, else a name and a value a line."""
    if as_json:
        print(json.dumps(row, default=_plain))
        return
    width = max(map(len, row))
    for name, value in row.items():
        out.print(f"[bold]{name:<{width}}[/]  ", end="")
        out.print(cell(name, value), markup=False, highlight=False)


def make_table(rows: Sequence[Row], *, title: str = "") -> Table:
    """A table with a column for each key of the first row; columns of numbers stand to the right."""
    table = Table(title=title or None, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for name in rows[0]:
        numeric = all(
            isinstance(row[name], (*_NUMERIC, type(None))) and not isinstance(row[name], bool) for row in rows
        )
        table.add_column(_heading(name), justify="right" if numeric else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(cell(name, value) for name, value in row.items()))
    return table


def cell(name: str, value: object) -> str:
    """One value as a person reads it; the column's name says its unit."""
    if value is None:
        return ""
    if name.endswith(_BYTES) and isinstance(value, _NUMERIC):
        return size(int(value))
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    if isinstance(value, timedelta):
        return duration(value.total_seconds())
    if isinstance(value, float | Decimal):
        return f"{float(value):.4g}"
    if isinstance(value, dict | list):
        return json.dumps(value, default=_plain)
    return str(value)


def size(size_bytes: int) -> str:
    """Bytes in units of 1024, as PostgreSQL writes them."""
    value = float(size_bytes)
    for unit in ("B", "kB", "MB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.2f} GB"


def duration(seconds: float) -> str:
    """Seconds as minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes else f"{rest} s"


def warn(text: str) -> None:
    """A line for the person at the terminal, on stderr."""
    print(text, file=sys.stderr)


def _unbounded_out() -> Console:
    return Console(width=_WIDE, highlight=False, file=sys.stdout)


def _heading(name: str) -> str:
    return name.removesuffix(_BYTES).replace("_", " ")


def _plain(value: object) -> object:
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value)
