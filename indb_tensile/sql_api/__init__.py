"""The Python side of the SQL functions: checks requests, enqueues trainings, and asks the service for predictions.

The extension contains the source text of these modules and of `indb_tensile/request` in one PL/Python function,
`tensile.bridge`, which compiles a module once per session, when it is first needed. The database host has no other
part of the package. Therefore these modules use only the standard library and relative imports, and contain SQL text.
Their records are named tuples, and paths are texts: dataclasses, pathlib and what these import would take every new
session some ten milliseconds.
Everything runs with the caller's own privileges, and a caller may call the bridge directly, so no request contains an
address, a path or SQL.
"""

import importlib
import json
from collections.abc import Iterator
from typing import cast

from ..errors import RequestError
from ..request.json_text import json_text
from .refusals import INVALID_BYTES, MAY_WRITE, READ_ONLY, RefusalError, database_error_fields, fault, refusal_fields
from .spi import SQL_ASCII, Json, Plpy, encoding, takes_any_statement


def answer(plpy: Plpy, verb: str, request: str | None, rows: list[str | None] | None = None) -> str:
    """Decode the JSON of a request, process it as `handle` does, and encode the answer.

    `rows` are JSON values that PostgreSQL wrote. They are passed on as bytes, which a request in JSON cannot contain,
    so a caller cannot forge them.
    """
    try:
        decoded = json.loads(request or "{}")
        if isinstance(decoded, dict):
            decoded["rows"] = None if rows is None else [None if row is None else row.encode() for row in rows]
    except (ValueError, RecursionError) as error:  # PostgreSQL reads deeper lists and longer numbers than Python
        refusal = RequestError(f"the request cannot be read: {error}", hint=_SIMPLER)
        return json_text({"ok": False, "error": refusal_fields(refusal)})
    return json_text(handle(plpy, verb, decoded))


def handle(plpy: Plpy, verb: str, request: Json) -> Json:
    """Process a request and return `{"ok": true, "result": ...}` or `{"ok": false, "error": {...}}`.

    The error has sqlstate, message, detail and hint. It is returned and not raised, because PL/Python would prefix
    the message with the name of the exception. `tensile.call` raises it in SQL.
    """
    try:
        return {"ok": True, "result": _result(plpy, verb, request)}
    except RequestError as refusal:
        return {"ok": False, "error": refusal_fields(refusal)}
    except RecursionError:
        too_deep = RequestError("the request is nested too deep", hint=_SIMPLER)
        return {"ok": False, "error": refusal_fields(too_deep)}
    except plpy.SPIError as error:
        fields = _with_place_of_text(plpy, request, database_error_fields(error))
        return {"ok": False, "error": _with_read_only_reason(plpy, fields)}
    except Exception as error:  # noqa: BLE001 - the outermost frame; PL/Python's own context names no module
        return {"ok": False, "error": fault(error)}


def prediction_pages(plpy: Plpy, reading: int, snapshot: str | None) -> Iterator[tuple[str | None, ...]]:
    """Yield the pages of a reading that the verb `predict_table` has prepared; below number 0 `forecast` has.

    Each has keys, values, labels, probabilities, targets and an error, as texts for SQL (relation_predictions.py).
    """
    plpy, place = _for_database(plpy), {}
    if reading > 0:
        module = importlib.import_module(".relation_predictions", __package__)
        place, pages = module.place_of(reading), module.pages(plpy, reading, snapshot)
    else:
        pages = importlib.import_module(".series_forecasts", __package__).pages(plpy, reading)
    while True:
        try:
            page = next(pages, None)
        except RequestError as refusal:
            page = _error_page(refusal_fields(refusal))
        except plpy.SPIError as error:
            page = _error_page(_with_place_of_text(plpy, place, database_error_fields(error)))
        except Exception as error:  # noqa: BLE001 - the outermost frame; PL/Python's own context names no module
            page = _error_page(fault(error))
        if page is None:
            return
        yield page


def _error_page(error: dict[str, str]) -> tuple[str | None, ...]:
    return None, None, None, None, None, json_text(error)


def _result(plpy: Plpy, verb: str, request: Json) -> Json:
    if verb not in VERBS:
        raise RequestError("the bridge has no such verb", hint=f"Known verbs: {', '.join(VERBS)}.")
    if not isinstance(request, dict):
        raise RequestError("the request is not a JSON object")
    module = importlib.import_module(f".{VERBS[verb]}", __package__)
    return dict(getattr(module, verb)(_for_database(plpy), request))


def _for_database(plpy: Plpy) -> Plpy:
    """Return `plpy`, or what stands for it in a database whose encoding needs that."""
    if encoding(plpy) == SQL_ASCII:
        importlib.import_module(".invalid_texts", __package__)  # no module can be imported between pages of answers
    if takes_any_statement(plpy):
        return plpy
    return cast(Plpy, importlib.import_module(".ascii_statements", __package__).AsciiStatements(plpy))


def _with_place_of_text(plpy: Plpy, request: Json, error: dict[str, str]) -> dict[str, str]:
    """Return PostgreSQL's error; if it refuses bytes of a database in SQL_ASCII, with the place of the text."""
    if error["sqlstate"] != INVALID_BYTES or encoding(plpy) != SQL_ASCII:
        return error
    module = importlib.import_module(".invalid_texts", __package__)
    return dict(module.with_place(plpy, request, error))


def _with_read_only_reason(plpy: Plpy, error: dict[str, str]) -> dict[str, str]:
    """Return PostgreSQL's error.

    In a session that can only read, the error also gets the reason and a hint.
    """
    if error["sqlstate"] != READ_ONLY:
        return error
    if next(iter(plpy.execute(IN_RECOVERY)))["standby"]:
        refusal = RefusalError(
            READ_ONLY,
            "this server is a standby, which takes no writes",
            detail=f"PostgreSQL says: {error['message']}.",
            hint="Connect to the primary server.",
        )
        return refusal_fields(refusal)
    return error | {"hint": MAY_WRITE}


IN_RECOVERY = "select pg_catalog.pg_is_in_recovery() as standby"
_SIMPLER = "Give lists and objects that are nested less deep, and numbers of fewer digits."
# The module of each verb; its function has the verb's name. The first request with the verb imports it, because
# compiling all modules takes longer than a prediction.
VERBS = {
    "train": "training_request",
    "explain": "training_request",
    "search": "search_request",
    "retry": "repeated_requests",
    "retrain": "repeated_requests",
    "create_model": "stored_models",
    "predict": "predictions",
    "explain_prediction": "explained_rows",
    "predict_table": "relation_predictions",
    "predict_into": "prediction_request",
    "forecast": "series_forecasts",
    "describe_prediction": "relation_columns",
    "evaluate": "evaluations",
    "figure": "figures",
    "split": "split_listing",
    "load_dataset": "dataset_loading",
    "ping": "service_connection",
}
