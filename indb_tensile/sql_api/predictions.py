"""Rows are predicted by the service, each answer in its row's place."""

import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

from . import service
from .errors import INVALID, INVALID_TEXT, RefusalError, shown
from .models import find_version
from .request import read_choice, read_integer, read_model_name
from .spi import Json, Plpy

_PREDICTIONS = ("value", "label", "proba", "vector")
_BRACES = str.maketrans("{}", "[]")
_PART_ROWS = 4096  # of one request: bounds its answer


def predict(plpy: Plpy, request: Json) -> Json:
    """Predict each of `rows`; a row that is null has the prediction null.

    `first_row` is the number of the first one, where these rows are part of a longer list: errors count from it. The
    answer has the version's number, which the next part's request names.
    """
    name, kind = read_model_name(request), read_choice(request, "kind", _PREDICTIONS, "value")
    first_row = read_integer(request, "first_row")
    version = find_version(plpy, name, read_integer(request, "version"))
    rows = request.get("rows")
    if not isinstance(rows, list):
        raise RefusalError(INVALID, "rows is not a list")
    numbered = len(rows) > 1 or first_row is not None
    first = 1 if first_row is None else first_row
    unnamed = request.get("unnamed") is True
    encoded = (
        (place, _encoded(row, unnamed, place + first if numbered else None))
        for place, row in enumerate(rows)
        if row is not None
    )
    values: list[Any] = [None] * len(rows)
    for places, part in _parts(encoded):
        asked = {"verb": "predict", "version": version["version_id"], "kind": kind}
        try:
            answer = service.ask_rows(plpy, asked, part)
        except service.ServiceRefusalError as refusal:
            if refusal.row is None or not numbered:
                raise
            raise refusal.of_row(places[refusal.row] + first) from None
        for place, value in zip(places, answer["values"], strict=True):
            values[place] = storable(value)
    return {"values": values, "version": version["number"]}


def storable(value: Any) -> Any:
    """JSON in PostgreSQL knows no NaN and no infinity: they travel as texts, which float8 reads."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list):
        return [storable(item) for item in value]
    if isinstance(value, dict):
        return {key: storable(item) for key, item in value.items()}
    return value


def _parts(encoded: Iterable[tuple[int, bytes]]) -> Iterator[tuple[list[int], list[bytes]]]:
    """Rows with their places, as many as one request has."""
    places: list[int] = []
    part: list[bytes] = []
    size_bytes = 0
    for place, row in encoded:
        if part and (size_bytes + len(row) > service.PART_BYTES or len(part) == _PART_ROWS):
            yield places, part
            places, part, size_bytes = [], [], 0
        places.append(place)
        part.append(row)
        size_bytes += len(row)
    if part:
        yield places, part


def _encoded(row: Any, unnamed: bool, number: int | None) -> bytes:
    """A row as the service reads it: `row(1, 2)` has no names, and a literal without a type is a text."""
    place = "" if number is None else f"row {number}"
    if unnamed and isinstance(row, dict):
        names = [f"f{column + 1}" for column in range(len(row))]
        row = [row[name] for name in names] if all(name in row for name in names) else row
    if isinstance(row, str):
        row = _literal_row(row, f" {number}" if number else "")
    try:
        return json.dumps(row, allow_nan=False, ensure_ascii=False).encode()
    except ValueError:
        raise _unsendable(row, place) from None


def _unsendable(row: Any, place: str) -> RefusalError:
    """The refusal of a row with a value that JSON has no form of, and where that value is."""
    named = row.items() if isinstance(row, dict) else enumerate(row, 1) if isinstance(row, list) else ()
    for name, value in named:
        if not _sendable(value):
            column = f'column "{name}"' if isinstance(row, dict) else f"value {name}"
            place = f"{place}, {column}" if place else column
            break
    return RefusalError(
        INVALID,
        f"{place or 'the row'}: a number is beyond the range of double precision, or a text is no Unicode",
        hint="Give numbers of at most 1.7e308; give null for what is not known.",
    )


def _sendable(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except ValueError:
        return False
    return True


def _literal_row(text: str, number: str) -> Any:
    """JSON, or an array of numbers as PostgreSQL writes it."""
    try:
        return json.loads(text.translate(_BRACES) if _ARRAY.fullmatch(text) else text, parse_constant=_no_json)
    except (ValueError, RecursionError):
        raise RefusalError(
            INVALID_TEXT,
            f"the row{number} to predict is neither JSON nor an array of numbers: {shown(text)}",
            hint="Pass a row, an array or jsonb: tensile_predict('model', t) from a table t, array[1, 2], "
            "or '{\"column\": 1}'::jsonb.",
        ) from None


def _no_json(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")


_ARRAY = re.compile(r"[{}\d\s.,eE+-]+")
