"""Rows are predicted by the service, each answer in its row's place."""

import json
import math
import re
from typing import Any

from . import service
from .errors import INVALID, INVALID_TEXT, RefusalError, shown
from .models import find_version
from .request import read_choice, read_integer, read_model_name
from .spi import Json, Plpy

_PREDICTIONS = ("value", "label", "proba", "vector")
_BRACES = str.maketrans("{}", "[]")


def predict(plpy: Plpy, request: Json) -> Json:
    """Predict each of `rows`; a row that is null has the prediction null."""
    name, kind = read_model_name(request), read_choice(request, "kind", _PREDICTIONS, "value")
    version = find_version(plpy, name, read_integer(request, "version"))
    rows = request.get("rows")
    if not isinstance(rows, list):
        raise RefusalError(INVALID, "rows is not a list")
    asked = [_row(row, unnamed=request.get("unnamed") is True) for row in rows if row is not None]
    values: list[Any] = []
    if asked:
        version_id = version["version_id"]
        answer = service.ask(plpy, {"verb": "predict", "version": version_id, "rows": asked, "kind": kind})
        values = [storable(value) for value in answer["values"]]
    given = iter(values)
    return {"values": [None if row is None else next(given) for row in rows]}


def storable(value: Any) -> Any:
    """JSON in PostgreSQL knows no NaN and no infinity: they travel as texts, which float8 reads."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list):
        return [storable(item) for item in value]
    if isinstance(value, dict):
        return {key: storable(item) for key, item in value.items()}
    return value


def _row(row: Any, *, unnamed: bool) -> Any:
    """A row as the service reads it: `row(1, 2)` has no names, and a literal without a type is a text."""
    if unnamed and isinstance(row, dict):
        names = [f"f{place + 1}" for place in range(len(row))]
        return [row[name] for name in names] if all(name in row for name in names) else row
    return _literal_row(row) if isinstance(row, str) else row


def _literal_row(text: str) -> Any:
    """JSON, or an array of numbers as PostgreSQL writes it."""
    try:
        return json.loads(text.translate(_BRACES) if re.fullmatch(r"[{}\d\s.,eE+-]+", text) else text)
    except (ValueError, RecursionError):
        raise RefusalError(
            INVALID_TEXT,
            f"the row to predict is neither JSON nor an array of numbers: {shown(text)}",
            hint="Pass a row, an array or jsonb: tensile_predict('model', t) from a table t, array[1, 2], "
            "or '{\"column\": 1}'::jsonb.",
        ) from None
