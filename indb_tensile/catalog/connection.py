"""Opens connections to PostgreSQL, and repeats work when the database restarts or a lock is in the way.

A worker's own sessions (controller, heartbeat, listener, trainer, service) pass a lock timeout to `connect`. Then
`connect` overrides every setting of the role or the database that would end or change such a session: `own_session`
in queries.sql lists these settings with the reason for each. A user's session keeps the user's settings.
"""

import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import PGconn, Ping
from psycopg.types.json import set_json_dumps
from tenacity import AsyncRetrying, Retrying, retry_if_exception, stop_before_delay, wait_exponential

from indb_tensile.catalog.queries import query
from indb_tensile.errors import DatabaseError, RequestError
from indb_tensile.request.json_text import json_text

Connection = psycopg.Connection[Any]
Result = TypeVar("Result")

# Without these a broken network was noticed after 45 s; with them after 10 s. The caller's dsn takes precedence.
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

# The lock timeouts of a worker's own sessions. Users can lock the rows of their own jobs, and the controller's loop
# serves all jobs, so the loop must not wait long for any lock.
LOOP_LOCK_TIMEOUT_MS = 100
WORK_LOCK_TIMEOUT_MS = 2_000

# Timeouts that could end a session between its start and its first statement. PgBouncer before 1.20 refuses this
# parameter, so the same timeouts are also lifted by statements.
_LIFTED_AT_START = "-c statement_timeout=0 -c idle_session_timeout=0 -c idle_in_transaction_session_timeout=0"
_NO_OPTIONS = "unsupported startup parameter"
_UNLIMITED_TRIES = 20  # attempts to lift a statement_timeout that is too short for the statement that lifts it
_TRANSACTION_TIMEOUT_SINCE = 170_000  # server_version_num


class UnreachableError(DatabaseError):
    """No connection could be made: the server is down, is restarting, or refuses connections."""


class LockedError(DatabaseError):
    """Another session blocks this statement, for example by a lock on its row. A later attempt may succeed."""

    sqlstate = "55P03"  # lock_not_available


def connect(
    dsn: str = "", *, application_name: str, lock_timeout_ms: int | None = None, callers_path: bool = False
) -> Connection:
    """Open a connection in autocommit mode. An empty dsn means libpq's own defaults and PG* variables.

    With `lock_timeout_ms`, the connection is a worker's own session, whose settings do not depend on its role or
    database. Without it, the connection prepares no statements on the server, so that a user's session also works
    through PgBouncer in transaction mode.

    The session pins search_path, so that no name in our statements can mean another role's object. With
    `callers_path`, for commands that run statements of the user, the session keeps the user's settings; PgBouncer in
    transaction mode would also pass changed settings on to other clients. Such callers run our own statements within
    `pinned`.

    Raises UnreachableError, a DatabaseError, with the host, the port and the server's message. Raises DatabaseError
    if a setting that cannot be overridden makes the session unusable.
    """
    options = connection_options(dsn, application_name)
    try:
        connection = _open(options, own=lock_timeout_ms is not None)
    except psycopg.OperationalError as error:
        raise UnreachableError(
            f"no connection to PostgreSQL at {_address(options)}: {_message(error)}", hint=_hint(_message(error))
        ) from error
    set_json_dumps(json_text, connection)
    try:
        if lock_timeout_ms is not None:
            _make_own(connection, lock_timeout_ms)
        elif not callers_path:
            connection.execute(query("pin_session"))
    except BaseException:
        connection.close()
        raise
    return connection


def connection_options(dsn: str, application_name: str) -> dict[str, Any]:
    """Return the options of a connection to `dsn`, with our defaults for those that it leaves out.

    Raises RequestError for a connection string that libpq cannot read.
    """
    try:
        parameters = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError as error:
        raise RequestError(
            f"the connection string cannot be read: {_message(error)}",
            hint='Write it as "host=... dbname=... user=..." or as postgresql://user@host/dbname.',
        ) from error
    options: dict[str, Any] = {**_DEFAULTS, "application_name": application_name}
    options.update({name: value for name, value in parameters.items() if value is not None})
    # Otherwise text comes and goes in the encoding of the database, in which psycopg cannot write all characters.
    options["client_encoding"] = "UTF8"
    return options


@contextmanager
def pinned(connection: Connection) -> Iterator[None]:
    """Run one transaction with search_path pinned, in whichever server session PgBouncer runs it."""
    with connection.transaction():
        connection.execute(query("pin_transaction"))
        yield


def _open(options: dict[str, Any], *, own: bool) -> Connection:
    if not own:
        return psycopg.connect(autocommit=True, prepare_threshold=None, **options)
    callers_options = options.get("options") or os.environ.get("PGOPTIONS", "")
    try:
        return psycopg.connect(autocommit=True, **{**options, "options": f"{callers_options} {_LIFTED_AT_START}"})
    except psycopg.OperationalError as error:
        if _NO_OPTIONS not in str(error):
            raise
    return psycopg.connect(autocommit=True, **options)


def _make_own(connection: Connection, lock_timeout_ms: int) -> None:
    """Override the settings of the role or the database that would end or change a worker's own session."""
    try:
        _lift_statement_timeout(connection)
        connection.execute(query("own_session"))
        if connection.info.server_version >= _TRANSACTION_TIMEOUT_SINCE:
            connection.execute(query("own_session_since_17"))
        row = connection.execute(query("limit_lock_waits"), {"timeout": f"{lock_timeout_ms}ms"}).fetchone()
        assert row is not None
        _, triggers, commits = row
        if commits == "off":
            connection.execute(query("commit_durably"))
        if triggers != "origin":
            _fire_triggers(connection, triggers)
    except psycopg.Error as error:
        raise UnreachableError(
            f"a new session could not be set up: {_message(error)}",
            hint="Look at the settings of its role and database: select * from pg_db_role_setting;",
        ) from error


def _fire_triggers(connection: Connection, replication_role: str) -> None:
    try:
        connection.execute(query("fire_triggers"))
    except psycopg.errors.InsufficientPrivilege as error:
        user, database = connection.info.user, connection.info.dbname
        raise DatabaseError(
            f'session_replication_role is "{replication_role}" for role "{user}" in database "{database}"',
            detail="With this value, the catalog's triggers and foreign keys do nothing. Only a superuser can change "
            "the setting.",
            hint=f'As a superuser: alter role "{user}" reset session_replication_role; '
            f'alter database "{database}" reset session_replication_role;',
        ) from error


def _lift_statement_timeout(connection: Connection) -> None:
    """Lift statement_timeout. A timeout of a few milliseconds may cancel this statement too, so it is repeated."""
    for _ in range(_UNLIMITED_TRIES):
        try:
            connection.execute(query("lift_statement_timeout"))
        except psycopg.errors.QueryCanceled as error:
            canceled = error
        else:
            return
    user = connection.info.user
    raise DatabaseError(
        f'statement_timeout of role "{user}" is too short for the statement that lifts it: {_message(canceled)}',
        hint=f'As a superuser: alter role "{user}" reset statement_timeout; '
        f'alter database "{connection.info.dbname}" reset statement_timeout;',
    ) from canceled


def answers(dsn: str) -> bool | None:
    """Return True if the server accepts connections, False while it starts or stops, None if nothing answers.

    The check uses neither a role nor a password, so True does not mean that these are right.
    """
    state = Ping(PGconn.ping(dsn.encode()))
    return {Ping.OK: True, Ping.REJECT: False}.get(state)


def retrying(
    action: Callable[[], Result],
    *,
    retry_s: float,
    wait_for_locks: bool = False,
    pause: Callable[[float], None] = time.sleep,
) -> Result:
    """Run `action`. Repeat it for up to `retry_s` while the database cannot be reached or drops the connection.

    With `wait_for_locks`, also repeat it after any other error that may be temporary, such as another session's lock
    (see `is_transient`). `action` must be safe to repeat, because a connection that breaks during a commit does not
    tell whether the commit happened. Raises DatabaseError after `retry_s` without the database, and all other errors
    at once.
    """
    attempts = Retrying(
        retry=retry_if_exception(lambda error: is_outage(error) or (wait_for_locks and is_transient(error))),
        wait=wait_exponential(multiplier=_FIRST_PAUSE_S, max=_LONGEST_PAUSE_S),
        stop=stop_before_delay(retry_s),
        sleep=pause,
        reraise=True,
    )
    try:
        return attempts(action)
    except (psycopg.Error, UnreachableError) as error:
        if is_outage(error):
            raise _outage_error(error, retry_s) from error
        raise


async def retrying_async(action: Callable[[], Awaitable[Result]], *, retry_s: float) -> Result:
    """Run `action` as `retrying` does, for asynchronous programs."""
    attempts = AsyncRetrying(
        retry=retry_if_exception(is_outage),
        wait=wait_exponential(multiplier=_FIRST_PAUSE_S, max=_LONGEST_PAUSE_S),
        stop=stop_before_delay(retry_s),
        reraise=True,
    )

    async def attempt() -> Result:  # tenacity awaits the result of a coroutine function only
        return await action()

    try:
        return await attempts(attempt)
    except (psycopg.Error, UnreachableError) as error:
        if is_outage(error):
            raise _outage_error(error, retry_s) from error
        raise


def is_outage(error: BaseException) -> bool:
    """Return whether the error means that the database went away, so that a new connection may succeed."""
    if isinstance(error, UnreachableError | psycopg.InterfaceError):
        return True
    if not isinstance(error, psycopg.OperationalError):
        return False
    state = error.sqlstate
    # 08: connection exceptions. 57P01, 02, 03, 05: shut down, crashed, starting up, idle too long. 53300: full.
    return state is None or state.startswith("08") or state in {"57P01", "57P02", "57P03", "57P05", "53300"}


def is_blocked(error: BaseException) -> bool:
    """Return whether another session blocked this statement. Statements on other rows may succeed now."""
    # 40001: serialization failure. 40P01: deadlock. 55006: in use. 55P03: lock timeout. 57014: cancelled.
    return isinstance(error, psycopg.Error) and error.sqlstate in {"40001", "40P01", "55006", "55P03", "57014"}


def is_transient(error: BaseException) -> bool:
    """Return whether the same statement may succeed later: after an outage, a lock, a full disk or lack of memory."""
    if not isinstance(error, psycopg.Error):
        return isinstance(error, UnreachableError)
    # 53: insufficient resources. 57: operator intervention. 58: input and output. 25006: the server is a standby.
    state = error.sqlstate or ""
    return is_outage(error) or is_blocked(error) or state.startswith(("53", "57", "58")) or state == "25006"


class Session:
    """A connection that reconnects after a restart of the database and repeats the interrupted work.

    The first connection is made at once and not retried, so that a wrong dsn is reported immediately. Without
    `at_once` the first `run` makes it, for sessions that begin while the database may be away.
    `lock_timeout_ms` makes it a worker's own session (see `connect`); `run` then also retries after a lock timeout.
    `callers_path` has the same meaning as in `connect`.
    """

    def __init__(
        self,
        dsn: str = "",
        *,
        application_name: str,
        retry_s: float = 60.0,
        lock_timeout_ms: int | None = None,
        callers_path: bool = False,
        at_once: bool = True,
    ) -> None:
        self._dsn = dsn
        self._application_name = application_name
        self._callers_path = callers_path
        self._retry_s = retry_s
        self._lock_timeout_ms = lock_timeout_ms
        self._connection: Connection | None = self._connect() if at_once else None

    def run(self, action: Callable[[Connection], Result], *, wait_for_locks: bool = True) -> Result:
        """Run `action` on the connection, and repeat it after an outage (see `retrying`). It must be safe to repeat.

        A worker's own session also repeats it after a lock timeout, unless `wait_for_locks` is False.
        """
        return retrying(
            lambda: self._attempt(action),
            retry_s=self._retry_s,
            wait_for_locks=wait_for_locks and self._lock_timeout_ms is not None,
        )

    def close(self) -> None:
        """Close the connection. A later `run` opens another one."""
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
        return connect(
            self._dsn,
            application_name=self._application_name,
            lock_timeout_ms=self._lock_timeout_ms,
            callers_path=self._callers_path,
        )

    def _attempt(self, action: Callable[[Connection], Result]) -> Result:
        if self._connection is None or self._connection.closed:
            self._connection = self._connect()
        try:
            return action(self._connection)
        except psycopg.Error as error:
            if is_outage(error):
                self.close()
            raise


def _outage_error(error: BaseException, retry_s: float) -> DatabaseError:
    if isinstance(error, UnreachableError) and retry_s <= 0:
        return error
    fault = f"did not come back within {retry_s:g} s" if retry_s > 0 else "went away"
    return UnreachableError(
        f"the database {fault}: {_message(error)}",
        hint="Start PostgreSQL, or look into its log for why it does not start.",
    )


def _address(parameters: dict[str, Any]) -> str:
    host = parameters.get("host") or parameters.get("hostaddr")
    address = f'host "{host}"' if host else "libpq's default host"
    if parameters.get("service"):
        address = f'service "{parameters["service"]}"'
    port = parameters.get("port")
    return f"{address}, port {port}" if port else address


def _message(error: BaseException) -> str:
    """Return the first line of the error with a message: libpq also writes lines about the addresses it tried."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    messages = [
        line for line in lines if not line.startswith(("Multiple connection attempts", "- host:", "Is the server"))
    ]
    return (messages or lines or [type(error).__name__])[0]


def _hint(message: str) -> str:
    for part, hint in _HINTS:
        if part in message:
            return hint
    return "Check host, port, user and database name, and that PostgreSQL accepts connections there."


# The wording of messages decides only about the hint: a server with another language gives the general hint.
_HINTS = (
    ("pg_hba.conf", "Add a line for this user and database to the server's pg_hba.conf, and reload it."),
    ("authentication failed", "Check the user's password, or for peer authentication the map in pg_ident.conf."),
    ("no password supplied", "Give the password in ~/.pgpass or PGPASSWORD."),
    ("does not exist", "Create it, or name another: dbname=... and user=... in the connection string."),
    ("Connection refused", "Is PostgreSQL running there? tensile up starts the embedded one."),
    ("No such file or directory", "Is PostgreSQL running there? tensile up starts the embedded one."),
    ("starting up", "Wait until the server has recovered."),
    ("too many", "Raise max_connections, or close other connections."),
)
