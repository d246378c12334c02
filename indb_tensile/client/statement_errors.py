"""Turns errors of SQLAlchemy and psycopg into the exceptions of this package, with message, DETAIL and HINT."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from indb_tensile.catalog.connection import LockedError, UnreachableError, is_outage
from indb_tensile.errors import (
    CancelledJobError,
    CatalogVersionError,
    DatabaseError,
    DataError,
    MemoryLimitError,
    MissingColumnError,
    MissingError,
    PrivilegeError,
    RequestError,
    StorageError,
    TensileError,
    UnavailableError,
    UnsupportedError,
)

# By SQLSTATE, or by the first characters of one; the longest that fits decides.
_KINDS: dict[str, type[TensileError]] = {
    "0A000": UnsupportedError,
    "22": RequestError,
    "22000": DataError,
    "23": RequestError,
    "25": RequestError,
    "2F": RequestError,
    "34": RequestError,
    "3F000": MissingError,
    "42": RequestError,
    "42501": PrivilegeError,
    "42703": MissingColumnError,
    "42704": MissingError,
    "42P01": MissingError,
    "42883": MissingError,
    "53100": StorageError,
    "53200": MemoryLimitError,
    "55": RequestError,
    "55P03": LockedError,
    "57014": CancelledJobError,
    "57P03": UnavailableError,
}
_NO_CATALOG = "Install the catalog into this database: tensile init --dsn …"


@contextmanager
def translated_errors() -> Iterator[None]:
    """Raise an exception of this package in place of one of SQLAlchemy or psycopg."""
    try:
        yield
    except psycopg.Error as error:
        raise error_of(error) from None
    except DBAPIError as error:
        if not isinstance(error.orig, psycopg.Error):
            raise RequestError(
                f"the database driver reports: {_first_line(error.orig)}",
                hint="Use the driver psycopg: create_engine('postgresql+psycopg://…').",
            ) from None
        raise error_of(error.orig) from None
    except PoolTimeoutError as error:
        raise UnreachableError(
            f"the engine has no free connection: {_first_line(error)}",
            hint="Close iterators of predictions that are not read to their end, or give the engine a larger pool.",
        ) from None
    except (ArgumentError, NoSuchModuleError) as error:
        raise RequestError(
            f"SQLAlchemy refuses the request: {_first_line(error)}",
            hint="Give an engine, or a URL such as postgresql+psycopg://user@host/database.",
        ) from None
    except SQLAlchemyError as error:
        raise RequestError(f"SQLAlchemy refuses the request: {_first_line(error)}") from error


def error_of(error: psycopg.Error) -> TensileError:
    """Return the exception of this package for an error of the driver."""
    primary = error.diag.message_primary
    if isinstance(error, psycopg.errors.UndefinedFunction) and "public.tensile_" in (primary or ""):
        return CatalogVersionError(
            f"this database lacks a function of indb-tensile: {primary}",
            detail="The catalog is missing, or is older than this client.",
            hint=_NO_CATALOG,
        )
    if primary is None or is_outage(error):
        return UnreachableError(
            f"the connection to the database is lost: {_first_line(error)}",
            hint="Call again: the engine connects anew. A job that was committed goes on meanwhile.",
        )
    return error_with(error.sqlstate or "", primary, error.diag.message_detail, error.diag.message_hint)


def error_with(sqlstate: str, message: str, detail: str | None, hint: str | None) -> TensileError:
    """Return the exception of this package for an SQLSTATE, as that of a failed job."""
    fitting = [state for state in _KINDS if sqlstate.startswith(state)]
    kind = _KINDS[max(fitting, key=len)] if fitting else DatabaseError
    raised = kind(message, detail=detail or "", hint=hint or "")
    raised.sqlstate = sqlstate
    return raised


def _first_line(error: object) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
