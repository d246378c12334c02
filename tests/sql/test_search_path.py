"""Check that no statement of the package runs a function of another role, whatever the function's name."""

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from indb_tensile.catalog import install
from indb_tensile.catalog.connection import connect
from indb_tensile.cli.statements import statement
from tests.conftest import Database
from tests.sql.traps import set_traps, trap_calls

from .conftest import Connection, Serve, refused, value
from .fakes import result
from .test_wait import ENDED, FAIL, run_in_background

pytestmark = pytest.mark.postgres


@pytest.fixture
def with_traps(alice: Connection) -> Connection:
    """Alice, who has created trap functions in schema public."""
    set_traps(alice, "public")
    return alice


def test_trap_functions_run_under_an_unpinned_path(with_traps: Connection, bob: Connection) -> None:
    bob.execute("select to_jsonb('a'::text), format('%s', 'b'::name), jsonb_build_object('a', 'b', 'c', 'd')")
    assert trap_calls(with_traps) == [("format (", "bob"), ("jsonb_build_object (", "bob"), ("to_jsonb", "bob")]


def test_tensile_up_runs_no_function_of_an_ordinary_role(
    with_traps: Connection, admin: Connection, database: Database
) -> None:
    with connect(database.dsn(), application_name="tensile up") as connection:
        install.install(connection)
        connection.execute(statement("set_socket_directory"), {"directory": "/run/tensile"})
        connection.execute(statement("end_worker"), {"pid": 1, "host": "here"})
        connection.execute(statement("worker_is_ready"), {"pid": 1})
    assert value(admin, "select value #>> '{}' from tensile.settings") == "/run/tensile"
    assert trap_calls(with_traps) == []


def test_installation_runs_no_function_of_an_ordinary_role(database: Database) -> None:
    with database.connect() as postgres:
        postgres.execute("create database trapped")
    try:
        with psycopg.connect(database.cluster.dsn(database="trapped"), autocommit=True) as postgres:
            postgres.execute("grant create on schema public to alice")
            with psycopg.connect(database.cluster.dsn(user="alice", database="trapped"), autocommit=True) as alice:
                set_traps(alice, "public")
            install.install(postgres)
            assert trap_calls(postgres) == []
    finally:
        with database.connect() as postgres:
            postgres.execute("drop database trapped with (force)")


def test_schema_with_the_name_of_the_workers_role_is_not_searched(
    alice: Connection, admin: Connection, database: Database
) -> None:
    admin.execute(sql.SQL("grant create on database {} to alice").format(sql.Identifier(database.name)))
    alice.execute("create schema tensile_worker; grant usage on schema tensile_worker to public")
    set_traps(alice, "tensile_worker")
    with connect(database.dsn("tensile_worker"), application_name="tensile controller") as worker:
        assert worker.execute("select format('%s.%s', 'a'::text, 'b'::text)").fetchone() == ("a.b",)
        assert worker.execute("show search_path").fetchone() == ("pg_catalog, pg_temp",)


def test_call_of_a_user_runs_no_function_of_another_user(
    with_traps: Connection, bob: Connection, admin: Connection, database: Database, serve: Serve
) -> None:
    with_traps.execute("grant select on iris to bob")

    def answer(request: dict[str, object]) -> dict[str, object]:
        if request["verb"] == "dataset":
            rows = [[1, "x"]] if request["offset"] == 0 else []
            return result({"columns": [["id", "int"], ["label", "text"]], "primary_key": "id", "rows": rows})
        if request["verb"] == "evaluate":
            return result({"metrics": {"accuracy": 1.0}})
        return result({"values": [1.0], "version": "0"})

    serve(answer)
    bob.execute("select tensile_create_model('mine')")
    admin.execute(
        """insert into tensile.model_versions (model_id, number, task, target, architecture, metrics, parameters,
               weights_bytes, deployed)
           select model_id, 1, 'classification', 'species', '{"type": "mlp"}', '{}', 1, 1, true from tensile.models"""
    )
    bob.execute("select tensile_load_dataset('digits', 'sample')")
    bob.execute("select * from tensile_evaluate('mine', 'iris')")
    bob.execute("select * from tensile_check()")
    bob.execute("select tensile_predict('mine', 1)")
    with run_in_background(database, FAIL, condition=ENDED):
        error = refused(bob, "call tensile_train_and_wait('mine', 'iris', target => 'species')")
    assert error.message == "the budget is below the floor"
    assert trap_calls(with_traps) == []
    assert value(bob, "select count(*) from sample") == 1
    assert value(bob, "show search_path") == '"$user", public'


@pytest.mark.usefixtures("published")
def test_view_is_evaluated_under_the_callers_path_and_the_path_is_restored(
    alice: Connection, admin: Connection, serve: Serve
) -> None:
    service = serve(lambda _: result({"metrics": {"accuracy": 1.0}}))
    admin.execute("create schema alice authorization alice")
    alice.execute(
        """create function alice.kind_of(int) returns text language plpgsql as $$ begin return 'kind ' || $1; end $$;
           create function alice.outer_kind(int) returns text language plpgsql
             as $$ begin return kind_of($1); end $$;
           create view seen as select alice.outer_kind(kind) as species, petal as t from iris;
           create view broken as select (1 / (kind - kind))::text as species from iris"""
    )
    assert value(alice, "select metric from tensile_evaluate('flowers', 'seen')") == "accuracy"
    assert service.requests[-1]["rows"][0] == {"species": "kind 1", "t": 1}
    assert refused(alice, "select * from tensile_evaluate('flowers', 'broken')").sqlstate == "22012"
    assert value(alice, "show search_path") == '"$user", public'


def test_data_set_is_loaded_into_the_first_schema_of_the_callers_path(
    alice: Connection, admin: Connection, database: Database, serve: Serve
) -> None:
    page = {"columns": [["id", "int"]], "primary_key": "id"}
    serve(lambda request: result(page | {"rows": [[1]] if request["offset"] == 0 else []}))
    admin.execute("create schema own authorization alice")
    alice.execute("set search_path = own, public")
    assert value(alice, "select tensile_load_dataset('digits')") == 1
    assert value(alice, "select count(*) from own.digits") == 1
    again = refused(alice, "select tensile_load_dataset('digits')")
    assert (again.sqlstate, again.message) == ("42P07", 'relation "own.digits" already exists')
    assert again.hint == (
        "Name another table: select tensile_load_dataset('digits', 'other_name'). "
        "Or drop it first: drop table own.digits;"
    )
    alice.execute("set search_path = nowhere")
    error = refused(alice, "select public.tensile_load_dataset('digits')")
    assert (error.sqlstate, error.message) == ("3F000", "no schema is selected to create the table in")
    assert database.name


def test_user_of_the_embedded_database_creates_in_its_own_schema_and_not_in_public(
    database: Database, embedded: None
) -> None:
    with database.connect("demo") as demo:
        assert value(demo, "select current_schema()") == "demo"
        assert refused(demo, "create table public.t (a int)").sqlstate == "42501"
        assert refused(demo, "create function public.to_jsonb(text) returns jsonb return null").sqlstate == "42501"
        demo.execute("create table t (a int)")
        assert value(demo, "select 't'::regclass::text || ' ' || to_regclass('demo.t')::text") == "t t"


@pytest.fixture
def embedded(database: Database) -> Iterator[None]:
    """Prepare the roles as in the embedded database. Roles belong to the whole cluster."""
    with connect(database.dsn(), application_name="tensile up") as connection:
        connection.execute(statement("prepare_embedded_roles"))
        connection.execute(statement("prepare_embedded_roles"))
        yield
        connection.execute("revoke pg_read_all_data from tensile_reader")
