"""Whose fault an error of the database is, and what the server said."""

import psycopg

from indb_tensile.errors import DatabaseError, LostClaimError

# What only the job's own table or request raises: data exceptions, violated constraints, users' functions.
_OWN_CLASSES = ("22", "23", "38", "39", "P0")


def is_databases(error: BaseException) -> bool:
    """Whether a fault comes from the database, and not from the job that met it."""
    if isinstance(error, psycopg.Error):
        return not (error.sqlstate or "").startswith(_OWN_CLASSES)
    return isinstance(error, DatabaseError) and not isinstance(error, LostClaimError)


def words(error: BaseException) -> str:
    """What the server said, in one line."""
    primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    return primary or str(error).strip() or type(error).__name__
