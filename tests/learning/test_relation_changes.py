"""A table that is locked, dropped, replaced or changed during reading is read again or refused."""

from collections.abc import Sequence

import psycopg
import pytest

from indb_tensile.errors import (
    MissingError,
    TableBusyError,
)
from indb_tensile.learning.relation.locked_relation import ReadLimits
from indb_tensile.learning.relation.relation_reader import describe, read
from indb_tensile.learning.storage.columns import Column
from tests.conftest import Database
from tests.learning.relations import all_columns, relation

pytestmark = pytest.mark.postgres


_REPLACED = """
alter table t rename to old;
create table t (a int, secret int);
insert into t values (3, 3);
grant select (a) on t to tensile_reader;
alter table t rename to new; alter table old rename to t; update t set a = 2; alter table t alter secret type bigint
"""


_REWRITTEN = "update t set a = 2; alter table t alter secret type bigint"


def test_a_table_dropped_and_created_again_is_another_table(database: Database) -> None:
    with database.connect() as connection, database.connect() as reader:
        connection.execute("create table t (a int)")
        target = relation(connection, "t")
        connection.execute("drop table t; create table t (a int)")
        with pytest.raises(MissingError, match=r"public\.t was dropped and created again"):
            read(reader, target, all_columns)
        connection.execute("drop table t")
        with pytest.raises(MissingError, match="no longer exists"):
            describe(reader, target)


def test_a_renamed_table_is_the_same_table(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("create table t (a int); insert into t values (4)")
        target = relation(connection, "t")
        connection.execute("alter table t rename to u")
        assert read(connection, target, all_columns).columns["a"].values.tolist() == [4]


def test_a_table_cannot_be_dropped_truncated_or_altered_while_it_is_read(database: Database) -> None:
    faults = []
    with database.connect() as connection, database.connect() as other:
        connection.execute(
            """create table t (a int) partition by list (a); create table t1 partition of t default;
               insert into t values (1)"""
        )
        other.execute("set lock_timeout = '10ms'")

        def choose(described: Sequence[Column]) -> tuple[str, ...]:
            for statement in ("drop table t", "truncate t1", "alter table t1 rename to t2"):
                with pytest.raises(psycopg.errors.LockNotAvailable) as caught:
                    other.execute(statement.encode())
                faults.append(str(caught.value))
            return all_columns(described)

        assert read(connection, relation(connection, "t"), choose).rows == 1
    assert len(faults) == 3


@pytest.mark.parametrize("change", ["truncate t; insert into t values (2, 2)", _REPLACED, _REWRITTEN])
def test_a_table_of_granted_columns_that_changes_during_reading_is_read_again(
    database: Database, change: str
) -> None:
    calls = []
    with database.connect() as admin, database.connect("tensile_reader") as reader:
        admin.execute("create table t (a int, secret int); insert into t values (1, 1)")
        admin.execute("grant select (a) on t to tensile_reader")

        def choose(described: Sequence[Column]) -> tuple[str, ...]:
            calls.append(len(described))
            if len(calls) == 1:
                admin.execute(change.encode())
            return ("a",)

        table = read(reader, relation(admin, "t"), choose)
    assert len(calls) == 2
    assert table.columns["a"].values.tolist() == [2]


def test_a_table_that_changes_three_times_during_reading_is_refused(database: Database) -> None:
    with database.connect() as admin, database.connect("tensile_reader") as reader:
        admin.execute("create table t (a int); grant select (a) on t to tensile_reader")

        def choose(described: Sequence[Column]) -> tuple[str, ...]:
            admin.execute("truncate t")
            return ("a",)

        with pytest.raises(MissingError, match="was changed 3 times while it was read"):
            read(reader, relation(admin, "t"), choose)

        def replace(described: Sequence[Column]) -> tuple[str, ...]:
            admin.execute("drop table t; create table t (a int); grant select on t to tensile_reader")
            return ("a",)

        with pytest.raises(MissingError, match=r"public\.t was dropped and created again"):
            read(reader, relation(admin, "t"), replace)


def test_a_locked_table_is_reported_busy_with_the_lock_holder(database: Database) -> None:
    with (
        database.connect() as admin,
        database.connect("alice") as alice,
        database.connect("tensile_reader") as reader,
    ):
        alice.execute(
            """create table t (a int, b int) partition by list (a); create table t1 partition of t default;
               grant select on t, t1 to tensile_reader; create table u (a int);
               grant select (a) on u to tensile_reader"""
        )
        for name in ("t1", "u"):
            with alice.transaction():
                alice.execute(f"lock table {name} in access exclusive mode".encode())
                with pytest.raises(TableBusyError, match=rf"table public\.{name} is locked") as caught:
                    read(reader, relation(admin, name[0]), lambda _: ("a",), limits=ReadLimits(lock_s=0.1))
            assert caught.value.hint == (
                f"Process {alice.info.backend_pid} of role alice locks it: end its transaction."
            )
            assert caught.value.sqlstate == "55P03"
        assert read(reader, relation(admin, "t"), all_columns).rows == 0
