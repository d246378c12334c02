"""Run attacks as a role, and report the outcome of each: denied, refused, no row, or rows."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import psycopg

from tests.security.attacks import Attack

Connection = psycopg.Connection[Any]

_SECRET = re.compile(r"secret_(\w+?)_(alice|dave)")
_EMPTY_COPY_BYTES = 21  # signature, flags, extension and trailer of a binary copy without a row
_RECORDED = """
select c.oid::regclass::text,
       exists (select from pg_attribute as a where a.attrelid = c.oid and a.attname = 'owner_oid')
  from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
 where n.nspname in ('tensile', 'tensile_data') and c.relkind = 'r' order by 1"""
_DEFINED = """
select md5(string_agg(t::text, '' order by t::text))
  from (select c.oid, c.relname, c.relowner, c.relacl, c.relrowsecurity, c.relhastriggers, c.relhasrules,
               c.relhasindex
          from pg_class as c join pg_namespace as n on n.oid = c.relnamespace where n.nspname = 'tensile'
        union all select p.oid, p.proname, p.proowner, p.proacl, null, null, null, null
          from pg_proc as p join pg_namespace as n on n.oid = p.pronamespace where n.nspname = 'tensile'
        union all select s.oid, s.nspname, s.nspowner, s.nspacl, null, null, null, null
          from pg_namespace as s where s.nspname = 'tensile') as t"""


class Outcome(StrEnum):
    """The outcome of a statement."""

    DENIED = "denied"  # by a privilege or by row-level security
    REFUSED = "refused"  # another error
    NOTHING = "nothing"  # the statement returned and changed no row
    ROWS = "rows"  # the statement returned or changed rows


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackReport:
    """One attack's outcome. `leaked` are the kinds and owners of secrets in the answer, `lost` are tables in which
    rows of other roles changed.
    """

    attack: Attack
    outcome: Outcome
    message: str = ""
    leaked: frozenset[tuple[str, str]] = frozenset()
    lost: tuple[str, ...] = ()
    given_away: tuple[str, ...] = ()  # tables with new rows that belong to another role than the attacker
    redefined: bool = False
    locks: frozenset[str] = frozenset()  # locks on tables of the catalog in modes above ROW EXCLUSIVE


@dataclass(frozen=True, slots=True)
class State:
    """Every row of the catalog, by table and content, with the row's owner if it has one."""

    rows: Mapping[tuple[str, str], int | None]
    definitions: str

    @classmethod
    def now(cls, connection: Connection) -> "State":
        """Read the state over a superuser's connection."""
        parts = [
            f"select '{name}' as t, md5(r::text) as d,"
            f" {'r.owner_oid' if owned else 'null'}::bigint as o from {name} as r"
            for name, owned in connection.execute(_RECORDED).fetchall()
        ]
        rows = connection.execute(" union all ".join(parts).encode()).fetchall()
        defined = connection.execute(_DEFINED).fetchone()
        assert defined is not None
        return cls({(name, digest): owner for name, digest, owner in rows}, defined[0])


def run_attack(connection: Connection, role: str, attack: Attack, before: State) -> AttackReport:
    """Run one attack as the role, in a transaction that is rolled back. The connection is a superuser's, in
    autocommit mode.
    """
    messages: list[str] = []

    def collect(diagnostic: psycopg.errors.Diagnostic) -> None:
        messages.append(f"{diagnostic.message_primary} {diagnostic.message_detail} {diagnostic.message_hint}")

    connection.add_notice_handler(collect)
    begin = f"begin; set local session authorization {role};"
    # A wait has to be ended. Any other statement ends by itself, however slow the machine is.
    if "wait" in attack.target:
        begin += " set local statement_timeout = '500ms';"
    try:
        with _rolled_back(connection):
            try:
                count, answer = _answer(connection, begin, attack)
            except psycopg.Error as error:
                messages.append(str(error) + str(error.diag.context or ""))
                denied = isinstance(error, psycopg.errors.InsufficientPrivilege)
                outcome = Outcome.DENIED if denied else Outcome.REFUSED
                return AttackReport(
                    attack=attack,
                    outcome=outcome,
                    message=f"{error.sqlstate} {error}",
                    leaked=_leaks(attack, messages),
                )
            attacker, has_written, locks = _effects(connection, role)
            after = State.now(connection) if has_written else before
            return AttackReport(
                attack=attack,
                outcome=Outcome.ROWS if count else Outcome.NOTHING,
                leaked=_leaks(attack, [*messages, answer]),
                lost=tuple(sorted({table for table, digest in before.rows.keys() - after.rows.keys()})),
                given_away=_given_away(attacker, before, after),
                redefined=after.definitions != before.definitions,
                locks=locks,
            )
    finally:
        connection.remove_notice_handler(collect)


@contextmanager
def _rolled_back(connection: Connection) -> Iterator[None]:
    try:
        yield
    finally:
        connection.execute("rollback")


_EFFECTS = """
reset session authorization; set local statement_timeout = 0;
select '{role}'::regrole::oid::bigint, pg_current_xact_id_if_assigned() is not null,
       array(select c.oid::regclass || ' ' || l.mode
               from pg_locks as l join pg_class as c on c.oid = l.relation
               join pg_namespace as n on n.oid = c.relnamespace
              where l.pid = pg_backend_pid() and n.nspname = 'tensile' and c.relkind in ('r', 'p')
                and l.mode not in ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock'))"""


def _effects(connection: Connection, role: str) -> tuple[int, bool, frozenset[str]]:
    """Become the superuser again. Return the attacker's oid, whether the transaction may have changed anything, and
    its locks. PostgreSQL has given a transaction that changes something an identifier.
    """
    with connection.cursor() as cursor:
        _execute_all(cursor, _EFFECTS.format(role=role))
        ((attacker, has_written, locks),) = cursor.fetchall()
    return attacker, has_written, frozenset(locks)


def _execute_all(cursor: psycopg.Cursor[Any], statements: str) -> None:
    """Execute several statements at once: thousands of attacks wait for the server. Only the last one's rows stay."""
    cursor.execute(statements.encode(), prepare=False)
    while cursor.nextset():
        pass


def _answer(connection: Connection, begin: str, attack: Attack) -> tuple[int, str]:
    """Begin the transaction. Return how many rows the statement returned or changed, and the text of its answer."""
    with connection.cursor() as cursor:
        if attack.kind == "copy":
            connection.execute(begin.encode(), prepare=False)
            with cursor.copy(attack.statement.encode()) as copy:
                data = b"".join(bytes(part) for part in copy)
            return int(len(data) > _EMPTY_COPY_BYTES), data.decode("utf-8", "replace")
        _execute_all(cursor, f"{begin} {attack.statement}")
        if cursor.description is None:
            return max(0, cursor.rowcount), ""
        rows = cursor.fetchall()
        return len(rows), "\n".join(" ".join(_text(value) for value in row) for row in rows)


def _text(value: Any) -> str:
    return bytes(value).decode("utf-8", "replace") if isinstance(value, bytes | memoryview) else str(value)


def _leaks(attack: Attack, answers: list[str]) -> frozenset[tuple[str, str]]:
    """Return the secrets in the answers that the statement does not contain itself."""
    named = set(_SECRET.findall(attack.statement))
    return frozenset(secret for answer in answers for secret in _SECRET.findall(answer) if secret not in named)


def _given_away(attacker: int, before: State, after: State) -> tuple[str, ...]:
    new = {key: owner for key, owner in after.rows.items() if key not in before.rows and owner is not None}
    return tuple(sorted({table for (table, _), owner in new.items() if owner != attacker}))
