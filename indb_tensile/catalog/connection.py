"""Connections that notice a dead network, and work that survives a restart of the database."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict

from indb_tensile.catalog.queries import query
from indb_tensile.errors import DatabaseError, RequestError

Connection = psycopg.Connection[Any]
Result = TypeVar("Result")

# Without these a cut network went unnoticed for 45 s; with them for 10 s. What the caller's dsn says goes first.
_DEFAULTS: dict[str, str | int] = {
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 4,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0


class UnreachableError(DatabaseError):
    """No connection could be made: the server is down, refuses, or is restarting."""


def connect(dsn: str = "", *, application_name: str, callers_path: bool = False) -> Connection:
    """A connection in autocommit mode. An empty dsn means libpq's own defaults and PG* variables.

    It pins search_path, so that nothing that our statements name is another role's. With `callers_path`, for commands
    that run what the user wrote, the session keeps its settings and prepares nothing, since PgBouncer in transaction
    mode would hand both on to other clients. There, `pinned` guards our own statements.

    Raises UnreachableError, which is a DatabaseError, with the host, the port and the server's own words.
    """
    try:
        asked = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError as error:
        raise RequestError(
            f"the connection string cannot be read: {_words(error)}",
            hint='Write it as "host=… dbname=… user=…" or as postgresql://user@host/dbname.',
        ) from error
    options: dict[str, Any] = {**_DEFAULTS, "application_name": application_name}
    options.update({name: value for name, value in asked.items() if value is not None})
    try:
        connection = psycopg.connect(autocommit=True, prepare_threshold=None if callers_path else 5, **options)
    except psycopg.OperationalError as error:
        raise UnreachableError(
            f"no connection to PostgreSQL at {_place(asked)}: {_words(error)}", hint=_hint(_words(error))
        ) from error
    if not callers_path:
        try:
            connection.execute(query("pin_session"))
        except BaseException:
            connection.close()
            raise
    return connection


@contextmanager
def pinned(connection: Connection) -> Iterator[None]:
    """One transaction with search_path pinned, whichever server session PgBouncer may run it in."""
    with connection.transaction():
        connection.execute(query("pin_transaction"))
        yield


def retrying(
    action: Callable[[], Result], *, patience_s: float, pause: Callable[[float], None] = time.sleep
) -> Result:
    """Do `action`, again and again for `patience_s` while the database cannot be reached or drops the connection.

    `action` must be safe to repeat: a connection that breaks during a commit does not tell whether it happened.
    Raises DatabaseError when patience is over; any other fault passes through at once.
    """
    end = time.monotonic() + patience_s
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return action()
        except (psycopg.Error, UnreachableError) as error:
            if not is_outage(error):
                raise
            if time.monotonic() + pause_s > end:
                raise _gave_up(error, patience_s) from error
        pause(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def is_outage(error: BaseException) -> bool:
    """Whether the database went away, so that a new connection may succeed where this one did not."""
    if isinstance(error, UnreachableError | psycopg.InterfaceError):
        return True
    if not isinstance(error, psycopg.OperationalError):
        return False
    state = error.sqlstate
    # 08: connection exceptions. 57P01, 02, 03, 05: shut down, crashed, starting up, idle too long. 53300: full.
    return state is None or state.startswith("08") or state in {"57P01", "57P02", "57P03", "57P05", "53300"}


class Session:
    """One connection that is opened anew when the database was restarted, and work that is done again on it.

    The first connection is made at once and not retried, so that a wrong dsn is reported immediately. `callers_path`
    is that of `connect`.
    """

    def __init__(
        self, dsn: str = "", *, application_name: str, patience_s: float = 60.0, callers_path: bool = False
    ) -> None:
        self._dsn = dsn
        self._application_name = application_name
        self._callers_path = callers_path
        self._patience_s = patience_s
        self._connection: Connection | None = self._connect()

    def run(self, action: Callable[[Connection], Result]) -> Result:
        """Do `action` on the connection, again after an outage: it must be safe to repeat. See `retrying`."""
        return retrying(lambda: self._attempt(action), patience_s=self._patience_s)

    def close(self) -> None:
        """End the connection; a later `run` opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _connect(self) -> Connection:
        return connect(self._dsn, application_name=self._application_name, callers_path=self._callers_path)

    def _attempt(self, action: Callable[[Connection], Result]) -> Result:
        if self._connection is None or self._connection.closed:
            self._connection = self._connect()
        try:
            return action(self._connection)
        except psycopg.Error as error:
            if is_outage(error):
                self.close()
            raise


def _gave_up(error: BaseException, patience_s: float) -> DatabaseError:
    if isinstance(error, UnreachableError) and patience_s <= 0:
        return error
    fault = f"did not come back within {patience_s:g} s" if patience_s > 0 else "went away"
    return UnreachableError(
        f"the database {fault}: {_words(error)}",
        hint="Start PostgreSQL, or look into its log for why it does not start.",
    )


def _place(asked: dict[str, Any]) -> str:
    host = asked.get("host") or asked.get("hostaddr")
    where = f'host "{host}"' if host else "libpq's default host"
    if asked.get("service"):
        where = f'service "{asked["service"]}"'
    port = asked.get("port")
    return f"{where}, port {port}" if port else where


def _words(error: BaseException) -> str:
    """The last line that says something: libpq puts addresses it tried before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kept = [
        line for line in lines if not line.startswith(("Multiple connection attempts", "- host:", "Is the server"))
    ]
    return (kept or lines or [type(error).__name__])[0]


def _hint(words: str) -> str:
    for part, hint in _HINTS:
        if part in words:
            return hint
    return "Check host, port, user and database name, and that PostgreSQL accepts connections there."


# Only a hint hangs on these words: a server that speaks another language gives the general one.
_HINTS = (
    ("pg_hba.conf", "Add a line for this user and database to the server's pg_hba.conf, and reload it."),
    ("authentication failed", "Check the user's password, or for peer authentication the map in pg_ident.conf."),
    ("no password supplied", "Give the password in ~/.pgpass or PGPASSWORD."),
    ("does not exist", "Create it, or name another: dbname=… and user=… in the connection string."),
    ("Connection refused", "Is PostgreSQL running there? tensile up starts the embedded one."),
    ("No such file or directory", "Is PostgreSQL running there? tensile up starts the embedded one."),
    ("starting up", "Wait until the server has recovered."),
    ("too many", "Raise max_connections, or close other connections."),
)
