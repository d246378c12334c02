"""Which faults of the database pass by themselves, so that what failed may be done again later.

`connection.is_outage` knows those after which another connection is needed. Here are those as well that leave the
connection as it is: a full disk, too little memory, a lock or a statement that took too long, two transactions in
each other's way.
"""

import psycopg

from indb_tensile.catalog.connection import UnreachableError, is_outage
from indb_tensile.errors import DatabaseError, LostClaimError

# Classes: 40 transaction rollback, 53 insufficient resources (disk full, out of memory, too many connections),
# 57 operator intervention (cancelled, timed out, shutting down), 58 system error (input and output).
_CLASSES = ("40", "53", "57", "58")
# 25006: the server is a standby, or has become one. 55P03: a lock was not to be had in time. 55006: in use.
_STATES = frozenset({"25006", "55P03", "55006"})
# What only the job's own table or request raises: data exceptions, violated constraints, users' functions.
_OWN_CLASSES = ("22", "23", "38", "39", "P0")


def may_pass(error: BaseException) -> bool:
    """Whether the same statement may succeed later."""
    if isinstance(error, psycopg.Error):
        state = error.sqlstate or ""
        return is_outage(error) or state.startswith(_CLASSES) or state in _STATES
    return isinstance(error, UnreachableError)


def is_databases(error: BaseException) -> bool:
    """Whether a fault comes from the database, and not from the job that met it."""
    if isinstance(error, psycopg.Error):
        return not (error.sqlstate or "").startswith(_OWN_CLASSES)
    return isinstance(error, DatabaseError) and not isinstance(error, LostClaimError)


def words(error: BaseException) -> str:
    """What the server said, in one line."""
    primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    return primary or str(error).strip() or type(error).__name__
