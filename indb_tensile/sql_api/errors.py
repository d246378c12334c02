"""How the bridge says no: a refusal, PostgreSQL's own error, or a fault of this code; and the SQLSTATEs it uses."""

import json
from typing import Any

# As in the package's own errors where the same fault exists there.
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
    """The answer is no: `tensile.call` raises it in SQL with these four."""

    def __init__(self, sqlstate: str, message: str, *, detail: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.error = {"sqlstate": sqlstate, "message": message, "detail": detail, "hint": hint}


def told_by_database(error: Any) -> dict[str, str]:
    """PostgreSQL's own error, its parts kept apart: (code, detail, hint, …) is what PL/Python stores of it."""
    data = getattr(error, "spidata", None) or (None, None, None)
    hint = data[2] or (_LOCKED if error.sqlstate == LOCKED else "")
    return {"sqlstate": error.sqlstate, "message": str(error), "detail": data[1] or "", "hint": hint}


def fault(error: Exception) -> dict[str, str]:
    """An error that nobody foresaw, with the modules and lines that it came through."""
    import traceback  # rare, and a session's first call is faster without it

    return {
        "sqlstate": FAULT,
        "message": f"the bridge failed: {type(error).__name__}: {error}",
        "detail": "".join(traceback.format_tb(error.__traceback__)).rstrip(),
        "hint": "This is a fault of indb-tensile: report it together with the DETAIL.",
    }


def shown(value: Any) -> str:
    """A value that was given, as messages show it."""
    if isinstance(value, str):
        value = value[:80]
    text = json.dumps(value, ensure_ascii=False).encode(errors="replace").decode()
    return text if len(text) <= 80 else text[:77] + "..."


_LOCKED = "Another session holds a lock on a table of the catalog: see pg_locks, and run the statement again."
