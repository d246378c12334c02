"""Explains the prediction for one row: the service returns what each column adds to it."""

from ..errors import RequestError
from ..request.request_fields import read_choice, read_integer, read_model_name, read_text
from . import service_connection
from .predictions import FORMS, rows_of, service_rows, storable
from .spi import Json, Plpy
from .version_lookup import find_version


def explain_prediction(plpy: Plpy, request: Json) -> Json:
    """Return the attributions of the only row. A null row has none."""
    name, form = read_model_name(request), read_choice(request, "form", FORMS, "value")
    label, seed = read_text(request, "label"), read_integer(request, "seed") or 0
    if seed < 0:
        raise RequestError(f"seed is {seed}", hint="Give a number from 0.")
    rows = rows_of(request)
    if len(rows) != 1:
        raise RequestError(f"{len(rows)} rows are given, and one is explained at a time")
    version = find_version(plpy, name, read_integer(request, "version"))
    asked: Json = {"verb": "attribute", "version": version["version_id"], "label": label, "seed": seed}
    if form == "record":
        asked["unnamed"] = True
    encoded = [row for _, row in service_rows(plpy, version, rows, form, None)]
    return {"rows": storable(service_connection.ask_rows(plpy, asked, encoded)["rows"]) if encoded else []}
