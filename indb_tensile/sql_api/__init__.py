"""What the SQL functions ask of Python: a request is checked and enqueued here, or put to the service.

The extension carries the text of these modules inside one PL/Python function, `tensile.bridge`, which compiles
them once per session: the database host has nothing else of the package. Hence the standard library only,
relative imports, and SQL text in Python. Everything runs with the caller's own privileges, and a caller may reach
it directly: no request holds an address, a path or SQL.
"""

import json
from collections.abc import Callable

from . import datasets, evaluations, models, parts, predictions, service, training
from .errors import INVALID, READ_ONLY, RefusalError, fault, told_by_database
from .spi import Json, Plpy


def answer(plpy: Plpy, verb: str, request: str | None, rows: list[str | None] | None = None) -> str:
    """Do what `verb` says of a request that is JSON, as `handle` does.

    `rows` are JSON that PostgreSQL wrote. As bytes they are told apart from what a request may hold itself.
    """
    try:
        asked = json.loads(request or "{}")
        if isinstance(asked, dict):
            asked["rows"] = None if rows is None else [None if row is None else row.encode() for row in rows]
    except (ValueError, RecursionError) as error:  # PostgreSQL reads deeper lists and longer numbers than Python
        refusal = RefusalError(INVALID, f"the request cannot be read: {error}", hint=_SIMPLER)
        return json.dumps({"ok": False, "error": refusal.error})
    return json.dumps(handle(plpy, verb, asked))


def handle(plpy: Plpy, verb: str, request: Json) -> Json:
    """Do what `verb` says: the answer is `{"ok": true, "result": …}` or `{"ok": false, "error": {…}}`.

    The error has sqlstate, message, detail and hint. It is returned, not raised: PL/Python would put its
    exception's name before the message. `tensile.call` raises it.
    """
    try:
        return {"ok": True, "result": _result(plpy, verb, request)}
    except RefusalError as refusal:
        return {"ok": False, "error": refusal.error}
    except RecursionError:
        return {"ok": False, "error": RefusalError(INVALID, "the request is nested too deep", hint=_SIMPLER).error}
    except plpy.SPIError as error:
        return {"ok": False, "error": _explained(plpy, told_by_database(error))}
    except Exception as error:  # noqa: BLE001 - the outermost frame; PL/Python's own context names no module
        return {"ok": False, "error": fault(error)}


def _result(plpy: Plpy, verb: str, request: Json) -> Json:
    if verb not in VERBS:
        raise RefusalError(INVALID, "the bridge has no such verb", hint=f"Known verbs: {', '.join(VERBS)}.")
    if not isinstance(request, dict):
        raise RefusalError(INVALID, "the request is not a JSON object")
    return VERBS[verb](plpy, request)


def _explained(plpy: Plpy, told: dict[str, str]) -> dict[str, str]:
    """PostgreSQL's error; where the session can only read, with the reason and the way out."""
    if told["sqlstate"] != READ_ONLY:
        return told
    if next(iter(plpy.execute(IN_RECOVERY)))["standby"]:
        refusal = RefusalError(
            READ_ONLY,
            "this server is a standby, which takes no writes",
            detail=f"PostgreSQL says: {told['message']}.",
            hint="Connect to the primary server.",
        )
        return refusal.error
    return told | {"hint": "Run: set transaction_read_only = off; or connect as a role whose sessions may write."}


IN_RECOVERY = "select pg_catalog.pg_is_in_recovery() as standby"
_SIMPLER = "Give lists and objects that are nested less deep, and numbers of fewer digits."
VERBS: dict[str, Callable[[Plpy, Json], Json]] = {
    "train": training.train,
    "explain": training.explain,
    "create_model": models.create_model,
    "predict": predictions.predict,
    "evaluate": evaluations.evaluate,
    "split": parts.split,
    "load_dataset": datasets.load_dataset,
    "ping": service.ping,
}
