"""The errors of the bridge: refused requests, PostgreSQL's errors, and faults of this code; and their SQLSTATEs."""

import json
from typing import Any

# Equal to the SQLSTATEs of the package's own errors (errors.py) where the same fault exists there.
PROTOCOL = "08P01"
UNSUPPORTED = "0A000"
DATA = "22000"
INVALID = "22023"
INVALID_TEXT = "22P02"
READ_ONLY = "25006"
NO_SCHEMA = "3F000"
DENIED = "42501"
MISSING = "42704"
MISSING_COLUMN = "42703"
DUPLICATE = "42710"
WRONG_KIND = "42809"
MISSING_TABLE = "42P01"
TOO_MUCH = "54000"
NOT_READY = "55000"
LOCKED = "55P03"
UNAVAILABLE = "57P03"
FAULT = "XX000"


class RefusalError(Exception):
    """A refused request. `tensile.call` raises it in SQL with these four fields."""

    def __init__(self, sqlstate: str, message: str, *, detail: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.error = {"sqlstate": sqlstate, "message": message, "detail": detail, "hint": hint}


def told_by_database(error: Any) -> dict[str, str]:
    """Return PostgreSQL's own error with its fields.

    PL/Python stores the fields as a tuple (code, detail, hint, …).
    """
    data = getattr(error, "spidata", None) or (None, None, None)
    hint = data[2] or (_LOCKED if error.sqlstate == LOCKED else "")
    return {"sqlstate": error.sqlstate, "message": str(error), "detail": data[1] or "", "hint": hint}


def fault(error: Exception) -> dict[str, str]:
    """Return an unexpected error, with the modules and lines of its traceback as DETAIL."""
    import traceback  # imported here, because faults are rare and the import would slow a session's first call

    return {
        "sqlstate": FAULT,
        "message": f"the bridge failed: {type(error).__name__}: {error}",
        "detail": "".join(traceback.format_tb(error.__traceback__)).rstrip(),
        "hint": "This is a fault of indb-tensile: report it together with the DETAIL.",
    }


def shown(value: Any) -> str:
    """Return an argument's value for a message, abbreviated if it is long."""
    if isinstance(value, str):
        value = value[:80]
    text = json.dumps(value, ensure_ascii=False).encode(errors="replace").decode()
    return text if len(text) <= 80 else text[:77] + "..."


_LOCKED = "Another session holds a lock on a table of the catalog: see pg_locks, and run the statement again."
