"""Train on, explain and predict foreign tables of postgres_fdw, whose server is this one, with a real controller."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Service

pytestmark = pytest.mark.postgres

ROWS = "select i as id, (i % 9)::float8 as x, 'w' || i % 4 as word, ((i % 9) * 2.0)::real as y from generate_series"
SMALL = """task => 'regression', architecture => '{"type": "mlp", "hidden": [8]}',
  hyperparams => '{"epochs": 2, "seed": 1}'"""
SERVER = """
create extension postgres_fdw;
create server loopback foreign data wrapper postgres_fdw
  options (host '{host}', port '{port}', dbname '{database}', fetch_size '50');
create user mapping for bob server loopback options (user 'bob', password_required 'false');
grant usage on foreign server loopback to bob;
create schema away authorization bob; create schema here authorization bob;
grant usage on schema here to tensile_reader"""
TABLES = f"""
create table away.visits as {ROWS} (1, 150) as i;
alter table away.visits add primary key (id);
create table away.y2026 as {ROWS} (101, 150) as i;
create foreign table here.visits (id int, x float8, word text, y real)
  server loopback options (schema_name 'away', table_name 'visits');
create table here.parted (id int, x float8, word text, y real) partition by range (id);
create table here.y2025 partition of here.parted for values from (1) to (101);
create foreign table here.y2026 partition of here.parted for values from (101) to (151)
  server loopback options (schema_name 'away', table_name 'y2026');
insert into here.parted {ROWS} (1, 100) as i;
create table here.plain as select * from away.visits order by id;
grant select on here.plain to tensile_reader"""


@pytest.fixture(scope="module", autouse=True)
def _foreign(running: Service) -> Iterator[None]:
    info = running.connection.info
    running.connection.execute(SERVER.format(host=info.host, port=info.port, database=info.dbname).encode())
    with running.database.connect("bob") as connection:
        connection.execute(TABLES.encode())
    yield
    running.connection.execute("drop extension postgres_fdw cascade; drop schema here, away cascade")


@pytest.fixture
def bob(running: Service) -> Iterator[psycopg.Connection]:
    """An ordinary user, who may use the foreign server."""
    with running.database.connect("bob") as connection:
        yield connection


def train(connection: psycopg.Connection, model: str, relation: str, more: str = "") -> int:
    row = connection.execute(f"select tensile_train('{model}', '{relation}', 'y', {SMALL}{more})".encode()).fetchone()
    assert row is not None
    return int(row[0])


def predictions(connection: psycopg.Connection, model: str, relation: str) -> list[Any]:
    statement = (
        "select key ->> 'id', value from tensile_predict_table(%s, %s::regclass, keys => array['id']) order by 1"
    )
    return connection.execute(statement.encode(), (model, relation)).fetchall()


@pytest.mark.nightly
def test_a_foreign_table_gives_the_model_and_the_predictions_of_a_plain_table(
    running: Service, bob: psycopg.Connection
) -> None:
    relations = {"foreign": "here.visits", "parted": "here.parted", "plain": "here.plain"}
    key = """, split => '{"key": ["id"]}'"""
    jobs = [train(bob, f"on_{name}", relation, key) for name, relation in relations.items()]
    snapshots = running.connection.execute("select job_id, key from tensile.snapshots order by 1").fetchall()
    assert [row for row in snapshots if row[0] in jobs] == [(jobs[0], ["id"]), (jobs[1], ["id"])]
    assert running.until_ended(*jobs) == ["succeeded"] * 3

    expected = predictions(bob, "on_plain", "here.plain")
    assert len(expected) == 150
    for name, relation in relations.items():
        assert predictions(bob, f"on_{name}", "here.plain") == expected
        assert predictions(bob, "on_plain", relation) == expected
        parts = bob.execute("select key, part from tensile_split(%s)", (f"on_{name}",)).fetchall()
        assert sorted(map(str, parts)) == sorted(
            map(str, bob.execute("select key, part from tensile_split('on_plain')").fetchall())
        )
        count = bob.execute(
            f"select count(*) from tensile_explain('e', '{relation}', 'y', {SMALL})".encode()
        ).fetchone()
        assert count is not None
        assert count[0] > 0
    metrics = "select metric, round(value::numeric, 6) from tensile_evaluate(%s, %s::regclass) order by 1"
    assert (
        bob.execute(metrics, ("on_plain", "here.visits")).fetchall()
        == bob.execute(metrics, ("on_plain", "here.plain")).fetchall()
    )


def test_a_foreign_table_is_a_test_part(running: Service, bob: psycopg.Connection) -> None:
    job = train(bob, "tested", "here.plain", """, split => '{"test": "here.visits"}'""")
    rows = running.connection.execute("select rows, test_rows from tensile.snapshots where job_id = %s", (job,))
    assert rows.fetchone() == (300, 150)
    bob.execute("select tensile_cancel(%s)", (job,))


@pytest.mark.nightly
@pytest.mark.parametrize("relation", ["here.visits", "here.parted"])
def test_a_foreign_server_that_is_away_ends_the_request_with_its_own_error(
    running: Service, bob: psycopg.Connection, relation: str
) -> None:
    running.connection.execute("alter server loopback options (set port '1')")
    try:
        with running.database.connect("bob") as other:  # which has no connection to the foreign server
            before = other.execute("select count(*) from tensile.jobs").fetchone()
            for call in (
                f"select tensile_train('lost', '{relation}', 'y', {SMALL})",
                f"select * from tensile_explain('lost', '{relation}', 'y', {SMALL})",
                f"select * from tensile_evaluate('on_plain', '{relation}')",
                f"select * from tensile_predict_table('on_plain', '{relation}', keys => array['id'])",
                f"select * from tensile_split('on_plain', '{relation}')",
            ):
                with pytest.raises(psycopg.Error) as caught:
                    other.execute(call.encode())
                assert caught.value.sqlstate == "08001", call
                assert caught.value.diag.message_primary == 'could not connect to server "loopback"', call
            assert other.execute("select count(*) from tensile.jobs").fetchone() == before
    finally:
        running.connection.execute(
            f"alter server loopback options (set port '{running.connection.info.port}')".encode()
        )


def test_a_foreign_table_whose_remote_table_is_gone_names_it(running: Service, bob: psycopg.Connection) -> None:
    bob.execute("create foreign table here.gone (x float8, y real) server loopback options (schema_name 'away')")
    with pytest.raises(psycopg.errors.UndefinedTable, match=r'relation "away.gone" does not exist'):
        train(bob, "lost", "here.gone")
