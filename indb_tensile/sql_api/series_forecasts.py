"""Forecasts the series of a relation, read with the caller's own rights, and evaluates forecasts on its rows.

The rows are read in the order of series and time. Whole series travel to the service in parts, and the forecasts of a
part are returned before the next part is read.
"""

# ruff: noqa: S608 - every name that goes into a statement is quoted by quote_ident, and every value by quote_literal

import itertools
import json
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..errors import RequestError
from ..request.abbreviation import shown
from ..request.json_text import json_text
from ..request.request_fields import read_integer, read_model_name, read_text
from . import service_connection
from .predictions import storable
from .refusals import DATA, DENIED, MISSING_COLUMN, NOT_READY, TOO_MUCH, RefusalError
from .relation_columns import RELATION_NAME, named_columns
from .relation_predictions import CURSORS, SESSION
from .shared_reading import Page
from .spi import Json, Plpy, Row, callers_path, fetch, literal
from .training_table import no_table
from .version_lookup import find_version

_FETCHED = 1000  # rows of one fetch
_MOST_SERIES_BYTES = service_connection.MOST_ROW_BYTES  # largest size of the rows of one series as JSON
_MOST_PREPARED = 16  # most readings that are prepared and not begun

_CHANNELS = ("targets", "observed")  # the columns whose values after an origin are not used


class _Reading(NamedTuple):
    """A prepared reading. Its rows have a row of the relation as JSON, its series, and whether it is later."""

    role: str
    statement: str
    path: str | None
    request: Json


def forecast(plpy: Plpy, request: Json) -> Json:
    """Check a request for the forecasts of a relation, and return the number with which `pages` begins."""
    name = read_model_name(request)
    version = find_version(plpy, name, read_integer(request, "version"), forecasts=True)
    described = describe(plpy, name, version)
    horizon = read_integer(request, "horizon")
    if horizon is not None and not 1 <= horizon <= described["horizon"]:
        raise RequestError(
            f'horizon is {horizon}, and model "{name}" forecasts {described["horizon"]} steps',
            hint=f"Give 1 to {described['horizon']}, or train the model with a longer horizon.",
        )
    number = next(_numbers)
    _prepared[number] = _Reading(
        role=fetch(plpy, SESSION)[0]["role"],
        statement=_statement(plpy, name, described, request),
        path=read_text(request, "search_path"),
        request={"verb": "nextsteps", "version": version["version_id"], "horizon": horizon},
    )
    while len(_prepared) > _MOST_PREPARED:
        _prepared.popitem(last=False)
    return {"reading": number}


def evaluate_series(plpy: Plpy, name: str, version: Row, request: Json) -> Json:
    """Return the metrics of forecasts from every origin of a relation's series."""
    described = describe(plpy, name, version)
    reading = _Reading(
        role="",
        statement=_statement(plpy, name, described, request, whole=True),
        path=read_text(request, "search_path"),
        request={"verb": "nextsteps", "version": version["version_id"]},
    )
    sums: list[Any] = []
    metrics: Json = {}
    cursor = f"tensile_series_{-next(_numbers)}"
    for part in _parts(plpy, reading, cursor):
        answer = service_connection.ask_rows(plpy, reading.request | {"sums": sums}, part)
        sums, metrics = answer["sums"], answer["metrics"]
    if not metrics:
        raise RefusalError(
            DATA,
            f"no series has an origin whose {described['horizon']} steps are known",
            hint="Name a relation with longer series, or leave relation out for the metrics of the steps that were "
            "held out of the training.",
        )
    return {"metrics": storable(metrics)}


def pages(plpy: Plpy, number: int) -> Iterator[Page]:
    """Yield the forecasts of a prepared reading, which can be read once, by the role that prepared it.

    A page has the rows as JSON in the field of targets.
    """
    reading = _prepared.pop(number, None)
    if reading is None:
        hint = "Call tensile_forecast, which prepares one."
        raise RefusalError(NOT_READY, f"there is no prepared reading {number} in this session", hint=hint)
    if reading.role != fetch(plpy, SESSION)[0]["role"]:
        raise RefusalError(DENIED, f"reading {number} was prepared by another role", hint="Prepare your own.")
    if _abandoned:
        for row in fetch(plpy, CURSORS, ",".join(_abandoned)):
            plpy.execute(f"close {row['name']}")
        _abandoned.clear()
    cursor = f"tensile_series_{-number}"
    try:
        for part in _parts(plpy, reading, cursor):
            rows = service_connection.ask_rows(plpy, reading.request, part)["rows"]
            yield None, None, None, None, json_text(storable(rows)), None
    except GeneratorExit:
        _abandoned.append(cursor)  # no statement can run while PostgreSQL ends the query
        raise


def describe(plpy: Plpy, name: str, version: Row) -> Json:
    """Return the service's description of a forecasting version. Refuses another one."""
    if version["task"] != "forecast":
        raise RequestError(
            f'model "{name}" predicts "{version["target"]}" of single rows, and forecasts no series',
            hint=f"Ask for predictions: select tensile_predict({literal(name)}, t) from t.",
        )
    features: Json = service_connection.ask(plpy, {"verb": "features", "version": version["version_id"]})
    return dict(features["forecast"])


def _statement(plpy: Plpy, name: str, described: Json, request: Json, *, whole: bool = False) -> str:
    """Return the query for the rows in the order of series and time. It runs with the caller's search_path.

    Only the rows that a window needs are read, unless several rows of a step are combined, or `whole` series are
    wanted.
    """
    source, columns = _relation(plpy, name, described, read_integer(request, "relation"), _all(described))
    needed = _all(described)
    place_of = {column: f"c{place}" for place, column in enumerate(needed)}
    own = ", ".join(f"t.{plpy.quote_ident(column)} as {place_of[column]}" for column in needed)
    inner = f"select {own}, false as later from {source} as t"
    future = read_integer(request, "future")
    if future is not None:
        inner += f" union all {_future(plpy, name, described, future, columns, place_of)}"
    time = place_of[described["time"]]
    shown_columns = dict(place_of)
    inner = f"select * from ({inner}) as a{_condition(plpy, described, request.get('series'), place_of)}"
    origin = read_text(request, "origin")
    moment = "" if origin is None else f"{plpy.quote_literal(origin)}::{columns[described['time']]['type']}"
    if origin is not None or request.get("series") is not None:
        _check_chosen(plpy, source, described, request, _ends(described, inner, place_of, moment))
    if origin is not None:
        for role in _CHANNELS:
            for column in described[role]:
                shown_columns[column] = (
                    f"case when {time} operator(pg_catalog.<=) {moment} then {place_of[column]} end"
                )
    picked = ", ".join(f"{shown_columns[column]} as {place_of[column]}" for column in needed)
    inner = f"select {picked}, later from ({inner}) as b"
    keys = ", ".join(place_of[column] for column in described["series"])
    series = f"pg_catalog.jsonb_build_array({keys})::pg_catalog.text"
    if not whole and described["duplicates"] == "error":
        known = _has_target(described, place_of)
        partition = f"partition by {keys} " if keys else ""
        inner = (
            f"select *, pg_catalog.count(*) filter (where {known}) over ({partition}order by {time} desc "
            f"rows unbounded preceding) as seen from ({inner}) as c"
        )
        inner = (
            f"select * from ({inner}) as d where seen operator(pg_catalog.<=) {described['window']}::pg_catalog.int8"
        )
    named = ", ".join(f"e.{place_of[column]} as {plpy.quote_ident(column)}" for column in needed)
    order = ", ".join((*(place_of[column] for column in described["series"]), time, "later"))
    return (
        f"select (select tensile.row_json(r.*)::pg_catalog.text from (select {named}) as r) as encoded, "
        f"{series} as series, e.later from ({inner}) as e order by {order}"
    )


def _ends(described: Json, chosen: str, place_of: dict[str, str], moment: str) -> str:
    """Return the query that counts the chosen series and those that end before `moment`, and names the latest end.

    A series ends with its last row that has a target: rows after it only have values that are known in advance.
    """
    time, known = place_of[described["time"]], _has_target(described, place_of)
    keys = ", ".join(place_of[column] for column in described["series"])
    last = f"pg_catalog.max({time}) filter (where {known})"
    ends = f"select {last} as last from ({chosen}) as b group by {keys or '()'} having pg_catalog.count(*) <> 0"
    early = f"last operator(pg_catalog.<) {moment}" if moment else "false"
    return (
        f"select pg_catalog.count(*) as series, pg_catalog.count(*) filter (where {early}) as early, "
        f"pg_catalog.max(last)::pg_catalog.text as last from ({ends}) as e"
    )


def _check_chosen(plpy: Plpy, source: str, described: Json, request: Json, ends: str) -> None:
    """Refuse chosen series of which the relation has no row, and an origin that no series reaches."""
    with callers_path(plpy, read_text(request, "search_path")):
        (counts,) = plpy.execute(ends)
    if not counts["series"] and request.get("series") is not None:
        columns = ", ".join(map(plpy.quote_ident, described["series"]))
        raise RefusalError(
            DATA,
            f"{source} has no rows of the series {shown(request['series'])}",
            detail="Values are compared as texts, as PostgreSQL writes them.",
            hint=f"See which series it has: select distinct {columns} from {source};",
        )
    if not counts["early"]:
        return
    origin = read_text(request, "origin")
    if counts["early"] == counts["series"]:
        targets = ", ".join(described["targets"])
        raise RefusalError(
            DATA,
            f"origin {origin} is after the last row with a value of {targets}, at {counts['last']}",
            detail=f"The rows are those of {source}. A forecast goes on from a row of the past.",
            hint=f"Leave origin out to forecast from the last rows, or give {counts['last']} or earlier.",
        )
    plpy.notice(
        f"{counts['early']} of {counts['series']} series end before the origin {origin}, and are forecast from their "
        "own last rows"
    )


def _has_target(described: Json, place_of: dict[str, str]) -> str:
    """Return the condition that a row has a target."""
    return " or ".join(f"{place_of[column]} is not null" for column in described["targets"])


def _relation(
    plpy: Plpy, name: str, described: Json, oid: int | None, needed: list[str]
) -> tuple[str, dict[str, Row]]:
    """Return the relation's name, quoted, and its columns. Refuses one without a needed column."""
    if oid is None:
        raise RequestError(
            "no relation is given",
            hint=f"Name the rows to forecast from: select * from tensile_forecast({literal(name)}, 'table').",
        )
    names = fetch(plpy, RELATION_NAME, oid)
    if not names:
        raise no_table(oid)
    columns = named_columns(plpy, oid)
    for column in needed:
        if column not in columns:
            raise RefusalError(
                MISSING_COLUMN,
                f'relation {names[0]["name"]} has no column "{column}", which model "{name}" needs',
                hint=f"Name a relation that has it. Its columns are {', '.join(columns) or 'none'}.",
            )
    return names[0]["name"], columns


def _future(
    plpy: Plpy, name: str, described: Json, oid: int, columns: dict[str, Row], place_of: dict[str, str]
) -> str:
    """Return the query for the rows with future values of known columns."""
    if not described["known"]:
        raise RequestError(
            f'future is given, and model "{name}" knows no column in advance',
            hint='Leave it out, or train with forecast => \'{"known": ["..."], ...}\'.',
        )
    needed = [*described["series"], described["time"], *described["known"]]
    source, own = _relation(plpy, name, described, oid, needed)
    for column in needed:
        if own[column]["type"] != columns[column]["type"]:
            raise RequestError(
                f'column "{column}" of {source} has type {own[column]["type"]}, and not {columns[column]["type"]}',
                detail="It is one of the columns of future.",
                hint="Name a view that casts it.",
            )
    parts = (
        f"f.{plpy.quote_ident(column)} as {place}" if column in needed else f"null as {place}"
        for column, place in place_of.items()
    )
    return f"select {', '.join(parts)}, true as later from {source} as f"


def _condition(plpy: Plpy, described: Json, series: Any, place_of: dict[str, str]) -> str:
    """Return the condition that a row is of the chosen series: ` where ...`, or nothing."""
    if series is None:
        return ""
    if not isinstance(series, dict) or not series:
        raise RequestError(f"series is {shown(series)}, not a JSON object", hint="Give it as '{\"store\": 7}'.")
    tests = []
    for column, value in series.items():
        if column not in described["series"]:
            known = ", ".join(described["series"]) or "none: the model has one series"
            raise RequestError(f'series names "{column}", which tells no series apart', hint=f"Known: {known}.")
        if value is None or isinstance(value, dict | list):
            raise RequestError(f'series: "{column}" is {shown(value)}', hint="Give a single value.")
        text = value if isinstance(value, str) else json.dumps(value)
        tests.append(f"{place_of[column]}::pg_catalog.text operator(pg_catalog.=) {plpy.quote_literal(text)}")
    return f" where {' and '.join(tests)}"


def _all(described: Json) -> list[str]:
    roles = ("series", "targets", "observed", "known", "static")
    names = [described["time"], *(name for role in roles for name in described[role])]
    return list(dict.fromkeys(names))


def _parts(plpy: Plpy, reading: _Reading, cursor: str) -> Iterator[list[bytes]]:
    """Yield the rows of whole series, in parts that fit into one request."""
    part: list[bytes] = []
    size_bytes = 0
    for series, rows in _series(plpy, reading, cursor):
        own_bytes = sum(map(len, rows))
        if own_bytes > _MOST_SERIES_BYTES:
            raise RefusalError(
                TOO_MUCH,
                f"series {series} has {own_bytes} bytes as JSON, more than {_MOST_SERIES_BYTES}",
                hint="Name a view with fewer of its rows, such as the last ones.",
            )
        if part and size_bytes + own_bytes > service_connection.PART_BYTES:
            yield part
            part, size_bytes = [], 0
        part += rows
        size_bytes += own_bytes
    if part:
        yield part


def _series(plpy: Plpy, reading: _Reading, cursor: str) -> Iterator[tuple[str, list[bytes]]]:
    """Yield the rows of one series after another, with its values as JSON."""
    with callers_path(plpy, reading.path):
        plpy.execute(f"declare {cursor} no scroll cursor for {reading.statement}")
    current: str | None = None
    rows: list[bytes] = []
    size_bytes = 0
    while records := _fetched(plpy, reading, cursor):
        for record in records:
            if record["series"] != current or size_bytes > _MOST_SERIES_BYTES:
                if rows and current is not None:
                    yield current, rows
                current, rows, size_bytes = record["series"], [], 0
            row = f"[{'true' if record['later'] else 'false'}, {record['encoded']}]".encode()
            size_bytes += len(row)
            rows.append(row)
    if rows and current is not None:
        yield current, rows
    plpy.execute(f"close {cursor}")


def _fetched(plpy: Plpy, reading: _Reading, cursor: str) -> list[Row]:
    """Return the next rows. The relation's functions, if it is a view, run here with the caller's search_path."""
    with callers_path(plpy, reading.path):
        return list(plpy.execute(f"fetch {_FETCHED} from {cursor}"))


_numbers = itertools.count(-1, -1)  # below 0: readings of relation_predictions.py are above
_prepared: OrderedDict[int, _Reading] = OrderedDict()
_abandoned: list[str] = []  # names of cursors
