"""Decides whether an error is the fault of the database or of the job that ran the statement."""

import psycopg

from indb_tensile.errors import DatabaseError, LostClaimError

# SQLSTATE classes that only the job's own table or request raises: data exceptions, violated constraints, and errors
# in users' functions.
_OWN_CLASSES = ("22", "23", "38", "39", "P0")


def is_database_fault(error: BaseException) -> bool:
    """Return whether the database caused an error, and not the job that ran the statement."""
    if isinstance(error, psycopg.Error):
        return not (error.sqlstate or "").startswith(_OWN_CLASSES)
    return isinstance(error, DatabaseError) and not isinstance(error, LostClaimError)


def server_message(error: BaseException) -> str:
    """Return the server's message in one line."""
    primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    return primary or str(error).strip() or type(error).__name__
