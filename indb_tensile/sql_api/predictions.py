"""Sends rows to the service for prediction, and returns the answers in the order of the rows."""

import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

from ..errors import RequestError
from ..request.abbreviation import shown
from ..request.pair_sides import check_side
from ..request.request_fields import read_choice, read_integer, read_model_name, read_text
from . import service_connection
from .refusals import INVALID_TEXT, TOO_MUCH, RefusalError
from .row_features import with_features
from .spi import Json, Plpy, Row
from .version_lookup import known_version

_PREDICTIONS = ("value", "label", "labels", "proba", "vector", "values", "embedding")
_EMBEDDING = "embedding"
FORMS = ("value", "record", "literal")
_BRACES = str.maketrans("{}", "[]")
_PART_ROWS = 4096  # rows of one request to the service: bounds the size of its answer
_NULL = b"null"
_ADVISED_AFTER = 1000  # predictions of one row in a statement after which a notice names the faster function
_calls: dict[str, Any] = {"statement": "", "count": 0}


def predict(plpy: Plpy, request: Json) -> Json:
    """Predict each of `rows`, which are JSON written by PostgreSQL. A null row has the prediction null.

    If these rows are part of a longer list, `first_row` is the number of the first row in it, from which error
    messages count. The answer includes the version's number, so that requests for further parts can name the same
    version. `form` says where the rows came from: a record whose fields have no names, a literal (JSON or an array),
    or any other value.
    """
    name, (kind, side) = read_model_name(request), _kind(request)
    form = read_choice(request, "form", FORMS, "value")
    first_row = read_integer(request, "first_row")
    version, statement = known_version(plpy, name, read_integer(request, "version"))
    rows = rows_of(request)
    numbered = len(rows) > 1 or first_row is not None
    if not numbered:
        _advise(plpy, statement)
    first = 1 if first_row is None else first_row
    encoded = service_rows(plpy, version, rows, form, first if numbered else None)
    values: list[Any] = [None] * len(rows)
    part_request: Json = {"verb": "predict", "version": version["version_id"], "kind": kind}
    if form == "record":
        part_request["unnamed"] = True
    if version["measure_drift"] and side is None:  # a row of one side lacks the inputs of the other one
        part_request["measured"] = True
    for positions, part in _parts(encoded):
        try:
            answer = service_connection.ask_rows(plpy, part_request, part)
        except service_connection.ServiceRefusalError as refusal:
            if refusal.row is None or not numbered:
                raise
            raise refusal.of_row(positions[refusal.row] + first) from None
        for position, value in zip(positions, answer["values"], strict=True):
            values[position] = storable(value)
    return {"values": values, "version": version["number"]}


def _kind(request: Json) -> tuple[str, str | None]:
    """Return the kind of answer, and the side of pairs that an embedding is of, if the request names one."""
    kind = read_text(request, "kind") or "value"
    if kind.endswith(f"/{_EMBEDDING}"):
        side = kind.removesuffix(f"/{_EMBEDDING}")
        check_side(side)
        return f"{side}_{_EMBEDDING}", side
    return read_choice(request, "kind", _PREDICTIONS, "value"), None


def _advise(plpy: Plpy, statement: str) -> None:
    """Count the statement's predictions of one row, and name the faster function once in a statement."""
    if _calls["statement"] != statement:
        _calls.update(statement=statement, count=0)
    _calls["count"] += 1
    if _calls["count"] == _ADVISED_AFTER:
        plpy.notice(
            f"this statement has predicted {_ADVISED_AFTER} rows one by one: "
            "tensile_predict_table('model', 'table') predicts a table 20 times faster or more"
        )


def rows_of(request: Json) -> list[bytes | None]:
    """Return the rows of the request.

    Only PostgreSQL can have written rows that are bytes, because a request in JSON cannot contain bytes. So rows are
    sent to the service without another check of their JSON.
    """
    rows = request.get("rows")
    if not isinstance(rows, list) or not all(row is None or isinstance(row, bytes) for row in rows):
        raise RequestError('the bridge\'s argument "rows" is not an array of jsonb')
    return rows


def storable(value: Any) -> Any:
    """Replace NaN and infinities by texts, which float8 can read.

    PostgreSQL's JSON has no such numbers.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list):
        return [storable(item) for item in value]
    if isinstance(value, dict):
        return {key: storable(item) for key, item in value.items()}
    return value


def _parts(encoded: Iterable[tuple[int, bytes]]) -> Iterator[tuple[list[int], list[bytes]]]:
    """Yield the rows with their positions, in parts that fit into one request."""
    positions: list[int] = []
    part: list[bytes] = []
    size_bytes = 0
    for position, row in encoded:
        if part and (size_bytes + len(row) > service_connection.PART_BYTES or len(part) == _PART_ROWS):
            yield positions, part
            positions, part, size_bytes = [], [], 0
        positions.append(position)
        part.append(row)
        size_bytes += len(row)
    if part:
        yield positions, part


def service_rows(
    plpy: Plpy, version: Row, rows: list[bytes | None], form: str, first: int | None
) -> Iterator[tuple[int, bytes]]:
    """Yield the rows as the service reads them, with their positions. Null rows are left out."""
    for begin in range(0, len(rows), _PART_ROWS):
        part = [
            None if row is None or row == _NULL else _service_row(row, form, None if first is None else first + place)
            for place, row in enumerate(rows[begin : begin + _PART_ROWS], start=begin)
        ]
        number = None if first is None else first + begin
        for place, row in enumerate(with_features(plpy, version, part, first=number, unnamed=form == "record")):
            if row is not None:
                yield begin + place, row


def _service_row(row: bytes, form: str, number: int | None) -> bytes:
    """Return a row as the service reads it. A literal is replaced by the JSON that it contains."""
    if form == "literal" and row.startswith(b'"'):
        row = _literal_row(json.loads(row), f" {number}" if number else "")
    if len(row) > service_connection.MOST_ROW_BYTES:
        raise RefusalError(
            TOO_MUCH,
            f"row {number or 1} has {len(row)} bytes as JSON, "
            f"more than the {service_connection.MOST_ROW_BYTES} that the service reads",
            hint="Give the model's columns only, shorter texts, or arrays of fewer values.",
        )
    return row


def _literal_row(text: str, number: str) -> bytes:
    """Return the JSON of a literal, which is JSON or an array of numbers as PostgreSQL writes it."""
    try:
        row = json.loads(
            text.translate(_BRACES) if _ARRAY.fullmatch(text) else text,
            parse_int=_integer,
            parse_constant=_refuse_constant,
        )
        return json.dumps(storable(row), allow_nan=False, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise RefusalError(
            INVALID_TEXT,
            f"the row{number} to predict contains a text that is not valid Unicode: {shown(text)}",
            hint="Leave out half surrogates such as \\ud800: PostgreSQL stores no such text.",
        ) from None
    except (ValueError, RecursionError):
        raise RefusalError(
            INVALID_TEXT,
            f"the row{number} to predict is neither JSON nor an array of numbers: {shown(text)}",
            hint="Pass a row, an array or jsonb: tensile_predict('model', t) from a table t, array[1, 2], "
            "or '{\"column\": 1}'::jsonb. For a model of one text column: tensile_predict('model', row('text')).",
        ) from None


def _integer(digits: str) -> int | float:
    """Return an integer, or infinity beyond double precision, as for a number with an exponent."""
    return int(digits) if len(digits) <= _LONGEST_INTEGER else float(digits)


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is not valid JSON")


_ARRAY = re.compile(r"[{}\d\s.,eE+-]+")
_LONGEST_INTEGER = 400  # characters: a double has up to 309 digits, and Python reads integers of 4,300
