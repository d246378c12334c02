"""The errors of the bridge: refused requests, PostgreSQL's errors, and faults of this code; and their SQLSTATEs."""

from typing import Any

from ..errors import RequestError

# Equal to the SQLSTATEs of the package's own errors (errors.py) where the same fault exists there.
PROTOCOL = "08P01"
NOT_SUPPORTED = "0A000"
DATA = "22000"
INVALID_TEXT = "22P02"
INVALID_BYTES = "22021"
READ_ONLY = "25006"
NO_SCHEMA = "3F000"
DENIED = "42501"
MISSING = "42704"
MISSING_COLUMN = "42703"
DUPLICATE_COLUMN = "42701"
SYNTAX = "42601"
DUPLICATE = "42710"
WRONG_KIND = "42809"
MISSING_TABLE = "42P01"
DUPLICATE_TABLE = "42P07"
TOO_MUCH = "54000"
TOO_MANY_COLUMNS = "54011"
NOT_READY = "55000"
LOCKED = "55P03"
UNAVAILABLE = "57P03"
FAULT = "XX000"

MAY_WRITE = "Run: begin read write; or, for the whole session: set default_transaction_read_only = off;"


class RefusalError(RequestError):
    """A refused request with an SQLSTATE of its own. `tensile.call` raises it in SQL."""

    def __init__(self, sqlstate: str, message: str, *, detail: str = "", hint: str = "") -> None:
        super().__init__(message, detail=detail, hint=hint)
        self.sqlstate = sqlstate


def refusal_fields(error: RequestError) -> dict[str, str]:
    """Return the four fields of a refused request, with which `tensile.call` raises it in SQL."""
    return {"sqlstate": error.sqlstate, "message": error.message, "detail": error.detail, "hint": error.hint}


def database_error_fields(error: Any) -> dict[str, str]:
    """Return PostgreSQL's own error with its fields.

    PL/Python stores the fields as a tuple (code, detail, hint, ...).
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


_LOCKED = "Another session holds a lock on a table of the catalog: see pg_locks, and run the statement again."
