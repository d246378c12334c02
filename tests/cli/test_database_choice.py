"""Check which database a command connects to, by libpq's conventions."""

from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from indb_tensile.catalog.install import SCRIPT
from tests.catalog import released
from tests.cli.conftest import Tensile
from tests.conftest import Database

pytestmark = pytest.mark.postgres


def connection_options(database: Database) -> dict[str, str]:
    return {name: str(value) for name, value in conninfo_to_dict(database.dsn("demo")).items()}


def test_every_way_to_name_a_database_works(tensile: Tensile, database: Database, open_directory: Path) -> None:
    words = connection_options(database)
    service_file = open_directory / "services"
    service_file.write_text("[mine]\n" + "".join(f"{name}={value}\n" for name, value in words.items()))
    by_variables = tensile.with_variables(PGHOST=words["host"], PGUSER="demo", PGDATABASE=words["dbname"])
    results = [
        tensile("models", "--dsn", database.dsn("demo")),
        tensile("models", "--dsn", f"postgresql://demo@/{words['dbname']}?host={words['host']}"),
        tensile.with_variables(TENSILE_DSN=database.dsn("demo"))("models"),
        by_variables("models"),
        by_variables("models", "--dsn", ""),
        tensile.with_variables(PGSERVICE="mine", PGSERVICEFILE=str(service_file))("models"),
        tensile.with_variables(PGSERVICEFILE=str(service_file))("models", "--dsn", "service=mine"),
    ]
    assert {(result.code, result.err) for result in results} == {
        (0, "no model yet: select tensile_train('model', 'table')\n")
    }


def test_option_takes_precedence_over_the_environment(tensile: Tensile, database: Database) -> None:
    with_unreachable_hosts = tensile.with_variables(TENSILE_DSN="host=/nonexistent", PGHOST="/nonexistent")
    assert with_unreachable_hosts("models", "--dsn", database.dsn("demo")).code == 0
    assert with_unreachable_hosts("models").code == 4


@pytest.mark.nightly
def test_psql_gets_its_own_arguments_and_the_database(tensile: Tensile, database: Database) -> None:
    words = connection_options(database)
    statement = "select current_user, current_database()"
    expected = f"demo|{words['dbname']}\n"
    assert tensile.with_variables(TENSILE_DSN=database.dsn("demo"))("psql", "-qAt", "-c", statement).out == expected
    assert tensile("psql", "--dsn", database.dsn("demo"), "-qAtc", statement).out == expected
    libpq = tensile.with_variables(PGHOST=words["host"], PGUSER="demo", PGDATABASE="postgres")
    assert libpq("psql", "-qAt", "-d", words["dbname"], "-c", statement).out == expected
    assert libpq("psql", "-h", words["host"], "-qAtc", "select 1").out == "1\n"
    failed = libpq("psql", "-d", words["dbname"], "-v", "ON_ERROR_STOP=1", "-c", "select 1/0")
    assert (failed.code, failed.err) == (1, "ERROR:  division by zero\n")


@pytest.mark.nightly
def test_psql_connects_as_the_given_role_however_the_database_is_named(tensile: Tensile, database: Database) -> None:
    words = connection_options(database)
    current_user_query = ("-qAtc", "select current_user")
    assert (
        tensile("psql", "--dsn", database.dsn("demo"), "--role", "postgres", *current_user_query).out == "postgres\n"
    )
    assert (
        tensile.with_variables(TENSILE_DSN=database.dsn("demo"))(
            "psql", "--role", "postgres", *current_user_query
        ).out
        == "postgres\n"
    )
    libpq = tensile.with_variables(PGHOST=words["host"], PGUSER="demo", PGDATABASE=words["dbname"])
    done = libpq("psql", "--role", "postgres", *current_user_query)
    assert (done.out, done.err) == (
        "postgres\n",
        "as postgres on the database of libpq's variables (PGHOST, PGDATABASE, PGUSER set), "
        "not on the embedded one\n",
    )
    assert libpq("psql", *current_user_query).out == "demo\n"


def test_version_shows_the_versions_of_the_command_and_of_the_database(tensile: Tensile, database: Database) -> None:
    done = tensile("version", "--json", "--dsn", database.dsn("demo"))
    assert done.code == 0
    assert done.out.startswith('{"tensile": "0.2.0", "catalog": "0.2.0", "postgresql": "')
    without_database = tensile("version")
    assert (without_database.code, without_database.out) == (0, "tensile  0.2.0\n")
    assert (
        without_database.err
        == "the catalog's version is unknown: no database is named, and there is no embedded one yet\n"
    )


def test_init_prints_its_result_and_requires_a_superuser(tensile: Tensile, database: Database) -> None:
    done = tensile("init", "--json", "--dsn", database.dsn())
    assert (done.code, done.out) == (
        0,
        f'{{"database": "{database.name}", "version": "0.2.0", "way": "script", "changed": false}}\n',
    )
    with database.connect() as admin:
        admin.execute("create or replace function tensile.catalog_digest() returns text return 'another'")
    second_init = tensile("init", "--dsn", database.dsn())
    assert second_init.code == 0
    assert "warning: it was installed from another source of the same version" in second_init.err
    with_pgml = tensile("init", "--pgml", "--dsn", database.dsn())
    assert (with_pgml.code, "schema pgml is installed" in with_pgml.err) == (0, True)
    placed = tensile("init", "--socket-directory", "/run/elsewhere", "--dsn", database.dsn())
    assert placed.code == 0
    with database.connect() as admin:
        assert admin.execute("select tensile.setting('socket_directory') #>> '{}'").fetchone() == ("/run/elsewhere",)
    relative = tensile("init", "--socket-directory", "run", "--dsn", database.dsn())
    assert relative.code != 0
    assert 'setting "socket_directory" is "run"' in relative.err
    assert "Give an absolute path" in relative.err
    with database.connect() as admin:
        admin.execute("alter schema pgml owner to alice")
    foreign_schema = tensile("init", "--pgml", "--dsn", database.dsn())
    assert foreign_schema.code != 0
    assert "alter schema pgml rename to old_pgml" in foreign_schema.err
    refused = tensile("init", "--dsn", database.cluster.dsn(user="alice", database="postgres"))
    assert refused.code == 3
    assert '"alice" is not a superuser' in refused.err


def test_init_upgrades_a_database_of_an_older_release(tensile: Tensile, database: Database) -> None:
    with database.cluster_connection() as admin:
        admin.execute("create database older")
    try:
        with psycopg.connect(database.cluster.dsn(database="older"), autocommit=True) as connection:
            released.install(connection, "0.1.0", SCRIPT)
        done = tensile("init", "--dsn", database.cluster.dsn(database="older"))
        assert done.code == 0
        assert done.err == (
            'the catalog 0.2.0 is upgraded from 0.1.0 in database "older"\n'
            "tensile doctor checks what else is needed\n"
        )
    finally:
        with database.cluster_connection() as admin:
            admin.execute("drop database older with (force)")


@pytest.mark.nightly
def test_controller_in_the_foreground_ends_with_the_code_of_its_error(tensile: Tensile, database: Database) -> None:
    with_wrong_size = tensile.with_variables(TENSILE_CAPACITY_BYTES="much")(
        "controller", "--dsn", database.dsn("tensile_worker")
    )
    assert with_wrong_size.code == 2
    assert "TENSILE_CAPACITY_BYTES is 'much'" in with_wrong_size.err
    without_catalog = tensile("controller", "--dsn", database.cluster.dsn(user="tensile_worker", database="postgres"))
    assert without_catalog.code == 4
    assert 'the catalog is not installed in database "postgres"' in without_catalog.err
