"""Measures a prediction of one row from SQL in a warm session, and rows per second of bulk predictions.

A service must run and a model must be deployed. The first call of the session, which compiles the bridge and may load
the model, has a figure of its own. `each` calls the function once for every row of one statement. `batch` passes many
rows at a time.
"""

import statistics
import time
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.queries import parse
from indb_tensile.errors import MissingError

BATCH_ROWS = 1000
WARM_CALLS = 20

_SQL = parse(Path(__file__).with_name("prediction_calls.sql").read_text(encoding="utf-8"))


def measure(connection: Connection, model: str | None, *, calls: int, rows: int) -> dict[str, Any]:
    """Return milliseconds per call and rows per second. Raises MissingError if there is no deployed model."""
    row = connection.execute(_SQL["model"].encode(), {"model": model}).fetchone()
    if row is None:
        hint = "Train one first: select tensile_load_dataset('digits'), tensile_train('digits', 'digits');"
        raise MissingError(f"there is no deployed model{f' {model}' if model else ''} to ask", hint=hint)
    name, relation = row
    create = sql.SQL(_SQL["create_rows"])
    connection.execute(create.format(relation=sql.SQL(relation), count=sql.Literal(rows)))
    try:
        return _measure(connection, name, calls, rows)
    finally:
        connection.execute(_SQL["drop_rows"].encode())


def _measure(connection: Connection, model: str, calls: int, rows: int) -> dict[str, Any]:
    started = time.perf_counter()
    numeric = _is_numeric(connection, model)
    cold_ms = 1000 * (time.perf_counter() - started)
    kind = "value" if numeric else "label"
    for _ in range(WARM_CALLS):
        _seconds(connection, f"one_{kind}", model)
    single_ms = sorted(1000 * _seconds(connection, f"one_{kind}", model) for _ in range(calls))
    return {
        "model": model,
        "first_call_ms": round(cold_ms, 2),
        "one_row_median_ms": round(statistics.median(single_ms), 3),
        "one_row_p99_ms": round(single_ms[int(0.99 * (len(single_ms) - 1))], 3),
        "each_rows_per_s": round(rows / _seconds(connection, f"each_{kind}", model)),
        "batch_rows_per_s": round(rows / _seconds(connection, "batches", model)) if numeric else None,
    }


def _is_numeric(connection: Connection, model: str) -> bool:
    """Return whether the model predicts a number. The session is warm afterwards."""
    try:
        connection.execute(_SQL["numeric"].encode(), {"model": model})
    except psycopg.errors.InvalidParameterValue:
        return False
    return True


def _seconds(connection: Connection, statement: str, model: str) -> float:
    started = time.perf_counter()
    connection.execute(_SQL[statement].encode(), {"model": model, "batch": BATCH_ROWS}, prepare=True).fetchall()
    return time.perf_counter() - started
