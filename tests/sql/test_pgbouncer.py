"""Check the work through PgBouncer: clients work in transaction mode, and a controller refuses to start there."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from indb_tensile.catalog.connection import UnreachableError, connect
from indb_tensile.catalog.pooling import refuse_pooled_sessions, refuse_shared_sessions
from indb_tensile.config import Settings
from indb_tensile.errors import DatabaseError
from tests.cli.conftest import Tensile
from tests.conftest import Database
from tests.pgbouncer import Pooled, pooled

from .conftest import Connection, Serve, value
from .test_drivers import described

pytestmark = pytest.mark.postgres

ROOT = Path(__file__).parents[2]
DEADLINE_S = 120.0


@pytest.fixture
def transaction_pool(database: Database) -> Iterator[Pooled]:
    """PgBouncer in transaction mode."""
    with pooled(database, "transaction") as pool:
        yield pool


@pytest.mark.parametrize(
    ("mode", "settings"),
    [
        ("transaction", ""),
        ("transaction", "server_round_robin = 1\nmin_pool_size = 4\n"),
        ("transaction", "server_reset_query_always = 1\n"),
        ("transaction", "default_pool_size = 1\n"),
        ("statement", ""),
    ],
)
def test_pools_that_share_sessions_are_refused(database: Database, mode: str, settings: str) -> None:
    with pooled(database, mode, settings) as pool:
        with pytest.raises(DatabaseError, match="a pooler runs each transaction in another session") as caught:
            refuse_pooled_sessions(pool.dsn("tensile_worker"))
        assert "pool_mode = session" in caught.value.hint


def test_server_and_pooler_in_session_mode_are_accepted(database: Database) -> None:
    refuse_pooled_sessions(database.dsn("tensile_worker"))
    with pooled(database, "session") as pool:
        refuse_pooled_sessions(pool.dsn("tensile_worker"))
        with connect(pool.dsn("tensile_worker"), application_name="test", lock_timeout_ms=100) as connection:
            assert connection.execute("show search_path").fetchone() == ("pg_catalog, pg_temp",)


def test_a_server_that_goes_away_during_the_check_is_unreachable_so_a_controller_waits_for_it(
    database: Database,
) -> None:
    first = connect(database.dsn("tensile_worker"), application_name="first")
    second = connect(database.dsn("tensile_worker"), application_name="second")
    with first, second, database.connect() as server:
        server.execute("select pg_terminate_backend(%s)", (second.info.backend_pid,))
        with pytest.raises(UnreachableError, match=f'database "{database.name}" .* has closed a new connection'):
            refuse_shared_sessions(first, second)


def test_pooler_that_other_clients_use_at_the_same_time_is_refused(transaction_pool: Pooled) -> None:
    with transaction_pool.connect("tensile_worker") as other_session, other_session.transaction():
        other_session.execute("select 1")
        with transaction_pool.connect("tensile_worker") as idle:
            idle.execute("select 1")
            with pytest.raises(DatabaseError):
                refuse_pooled_sessions(transaction_pool.dsn("tensile_worker"))


@pytest.mark.nightly
def test_controller_behind_a_pooler_ends_at_once_with_a_hint(transaction_pool: Pooled) -> None:
    environment = os.environ | Settings(dsn=transaction_pool.dsn("tensile_worker")).environment()
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-m", "indb_tensile.worker.controller"],
        env=environment, capture_output=True, text=True, check=False, timeout=DEADLINE_S,
    )  # fmt: skip
    assert (done.returncode, "names the server itself" in done.stderr) == (4, True), done.stderr


@pytest.mark.usefixtures("published")
def test_clients_train_predict_and_cancel_in_transaction_mode(
    alice: Connection, serve: Serve, transaction_pool: Pooled
) -> None:
    serve(lambda request: described(request, ["petal", "sepal"]))
    table = "select array_agg(value) from tensile_predict_table('flowers', 'iris') where (key ->> 'id')::int < 4"
    del alice  # the fixture created the table and the model
    with transaction_pool.connect("alice") as first, transaction_pool.connect("alice") as second:
        for client in (first, second) * 4:
            job = value(client, "select tensile_train('flowers', 'iris', target => 'species')")
            assert value(client, "select tensile_predict('flowers', i) from iris as i where id = %s", 1) == 0.5
            assert len(value(client, table)) == 3
            assert value(client, "select tensile_deploy('flowers', 1)") == 1
            assert value(client, "select tensile_cancel(%s)", job) is True
            assert value(client, "select state::text from tensile.jobs where job_id = %s", job) == "cancelled"


def test_command_line_trains_and_cancels_in_transaction_mode(transaction_pool: Pooled) -> None:
    tensile = Tensile({"TENSILE_DSN": transaction_pool.dsn("demo")})
    with transaction_pool.connect("demo") as demo:
        demo.execute("create table t as select x, 2 * x as y from generate_series(1, 40) as x")
        demo.execute("grant select on t to tensile_reader")
    for number in (1, 2, 3):
        assert tensile("train", "m", "t", "--target", "y").code == 0
        assert tensile("cancel", str(number)).code == 0
    listed = tensile("jobs")
    assert (listed.code, listed.out.count("cancelled")) == (0, 3)


def test_session_of_the_client_library_prepares_no_statement_on_the_server(transaction_pool: Pooled) -> None:
    for _ in range(3):
        with connect(transaction_pool.dsn("demo"), application_name="test") as connection:
            for _ in range(10):
                assert connection.execute("select %s::int", (1,)).fetchone() == (1,)
            assert connection.execute("select count(*) from pg_prepared_statements").fetchone() == (0,)
