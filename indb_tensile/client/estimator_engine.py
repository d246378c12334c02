"""The engine of estimators that name no database of their own.

An engine is no parameter of an estimator, since `clone` deep-copies parameters, and an engine cannot be copied.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from psycopg.conninfo import conninfo_to_dict, make_conninfo
from sqlalchemy import Engine

from indb_tensile.errors import RequestError

_lock = threading.Lock()
# The engines of all open scopes, the innermost last. All threads share them, because GridSearchCV fits its candidates
# in several threads.
_engines: list[Engine] = []


@contextmanager
def engine_scope(engine: Engine) -> Iterator[Engine]:
    """Let estimators without a `dsn` and without an engine of their own use this engine, in all threads."""
    with _lock:
        _engines.append(engine)
    try:
        yield engine
    finally:
        with _lock:
            _engines.remove(engine)


def scoped_engine() -> Engine | None:
    """Return the engine of the innermost open scope."""
    with _lock:
        return _engines[-1] if _engines else None


def checked_dsn(dsn: str | None) -> str | None:
    """Return the connection string. Raises RequestError for one with a password, which a repr would show."""
    if dsn is not None and dsn != without_password(dsn):
        raise RequestError(
            "dsn has a password, which the estimator's repr would show",
            hint="Give the password by libpq's ways (~/.pgpass, PGPASSWORD), or an engine: set_engine(engine).",
        )
    return dsn


def without_password(dsn: str) -> str:
    """Return a connection string without its password; an empty string if it cannot be read."""
    try:
        options = conninfo_to_dict(dsn)
    except Exception:  # noqa: BLE001 - whatever it is, it may hold a secret
        return ""
    if not any(options.pop(name, None) is not None for name in ("password", "sslpassword")):
        return dsn
    return make_conninfo("", **options)
