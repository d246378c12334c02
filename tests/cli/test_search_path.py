"""Check that commands run no function or operator that another role has created on the user's search_path."""

import pytest

from tests.catalog.enqueue import enqueue
from tests.cli.conftest import Tensile
from tests.conftest import Database
from tests.sql.traps import set_traps, trap_calls

pytestmark = pytest.mark.postgres


@pytest.fixture
def database_with_traps(database: Database) -> Database:
    """A database in which alice has created trap functions, and an operator for states of jobs, in schema public."""
    with database.connect("alice") as alice:
        set_traps(alice, "public")
        alice.execute(
            """create function public.same(tensile.job_state, tensile.job_state) returns boolean language plpgsql
                 as $$ begin insert into public.ran values ('=', current_user); return true; end $$;
               create operator public.= (leftarg = tensile.job_state, rightarg = tensile.job_state,
                                         function = same)"""
        )
    return database


def test_commands_run_no_function_of_another_role(database_with_traps: Database, demo: Tensile) -> None:
    with database_with_traps.connect("demo") as user:
        job = enqueue(user)
    for command in (
        ("jobs", "--state", "queued"),
        ("job", str(job)),
        ("models",),
        ("plan", "--job", str(job)),
        ("version",),
        ("cancel", str(job)),
        ("wait", str(job)),
        ("doctor", "--dsn", database_with_traps.dsn("demo")),
    ):
        demo(*command)
    with database_with_traps.connect() as postgres:
        assert trap_calls(postgres) == []
        assert postgres.execute("select state::text from tensile.jobs").fetchone() == ("cancelled",)


def test_relation_is_resolved_with_the_users_search_path(database: Database, demo: Tensile) -> None:
    with database.connect() as postgres:
        postgres.execute("create schema demo authorization demo")
    with database.connect("demo") as user:
        for schema in ("public", "demo"):
            user.execute(
                f"create table {schema}.t as select i as a, i % 2 as y from generate_series(1, 50) as i".encode()
            )
            user.execute(f"grant select on {schema}.t to tensile_reader".encode())
        user.execute("grant usage on schema demo to tensile_reader")
        done = demo("train", "m", "t", "--target", "y")
        assert done.code == 0, done.err
        assert user.execute("select relation_schema from tensile.jobs").fetchone() == ("demo",)
