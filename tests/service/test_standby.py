"""Check predictions on a hot standby, by a service that only reads."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from psycopg.types.json import Jsonb

from indb_tensile.catalog import install
from indb_tensile.cluster import Cluster, temporary_cluster
from tests.conftest import ROLES, Database
from tests.open_directory import open_directory
from tests.sql.conftest import Refused, refused

from .conftest import ENVIRONMENT, fill, publish
from .fakes import wait_until

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.nightly,
]  # two servers and a copy of a data directory take ten seconds

_COMMAND = (sys.executable, "-c", "from indb_tensile.cli.main import main; main()")
_REPLICATES = "wal_level = replica\nmax_wal_senders = 4\nhot_standby = on\n"


@contextmanager
def standby_of(primary: Cluster) -> Iterator[Cluster]:
    """Yield a running hot standby of the cluster, which is below the same directory."""
    directory = primary.directory / "standby"
    standby = replace(primary, directory=directory)
    directory.mkdir(mode=0o755)
    for path in (directory, standby.run):
        path.mkdir(mode=0o755, exist_ok=True)
        subprocess.run(["chown", primary.system_user, str(path)], check=True)
    (primary.data / "pg_hba.conf").write_text("local all,replication all peer map=tensile\n")
    user = primary.system_user
    with psycopg.connect(primary.dsn(database="postgres"), autocommit=True) as connection:
        connection.execute("select pg_reload_conf()")
    copy = [primary.programs.path("pg_basebackup"), "-D", str(standby.data), "-R", "-X", "stream", "-c", "fast"]
    subprocess.run([*copy, "-h", str(primary.run), "-U", "postgres"], check=True, user=user, env={})
    settings = (standby.data / "tensile.conf").read_text()
    (standby.data / "tensile.conf").write_text(
        re.sub(r"(unix_socket_directories = ).*", rf"\1'{standby.run}'", settings)
    )
    standby.start()
    try:
        yield standby
    finally:
        standby.stop(mode="immediate")


@contextmanager
def read_only_service(dsn: str, socket: Path, *options: str) -> Iterator["subprocess.Popen[str]"]:
    """Run `tensile service --read-only`, and yield it when it listens on this socket."""
    process = subprocess.Popen(
        [*_COMMAND, "service", "--read-only", "--dsn", dsn, *options],
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: socket.exists() or process.poll() is not None)
        yield process
    finally:
        process.terminate()
        process.communicate()


def test_sessions_of_a_standby_predict_by_a_service_that_only_reads() -> None:
    with (
        open_directory("suite-standby-") as directory,
        temporary_cluster(ROLES, _REPLICATES, within=directory) as cluster,
    ):
        primary = database_with_a_model(cluster, directory / "sockets")
        row = '{"a": 0.5, "b": "x"}'
        with (
            standby_of(cluster) as standby,
            psycopg.connect(standby.dsn("demo", "served"), autocommit=True) as reader,
        ):
            _wait_for_replay(primary, reader)
            assert refused(reader, f"select tensile_predict_label('flowers', '{row}')") == Refused(
                "57P03",
                "no service answers",
                f"Tried {_name(reader)}: No such file or directory.",
                "This server is a hot standby. Start a service beside it: tensile service --read-only.",
            )
            with read_only_service(
                standby.dsn("tensile_worker", "served"), directory / f"sockets/{_name(reader)}.sock"
            ):
                predict = f"select tensile_predict_label('flowers', '{row}')"
                (label,) = reader.execute(predict.encode()).fetchone() or (None,)
                assert label in {"p", "q"}
                scores: dict[str, float] = dict(
                    reader.execute("select * from tensile_evaluate('flowers', 'flowers')").fetchall()
                )
                assert 0 <= scores["accuracy"] <= 1
                _compare_with_single_calls(reader)
                _compare_a_reading_of_the_service(reader)
                assert refused(reader, "select * from tensile_explain('m', 'flowers')") == Refused(
                    "0A000",
                    "a hot standby answers predictions and evaluations only",
                    None,
                    "Connect to the primary server.",
                )
                assert refused(reader, "select tensile_train('m', 'flowers')").sqlstate == "25006"
            assert refused(reader, predict).sqlstate == "57P03", "the service removes its socket"
            assert _counted(primary) == ([], []), "it had no connection to the primary"
            with primary.connect("demo") as demo:
                demo.execute("select tensile_measure_drift('flowers')")
            _wait_for_replay(primary, reader)
            socket = directory / f"sockets/{_name(reader)}.sock"
            to_primary = ("--primary-dsn", primary.dsn("tensile_worker"))
            with read_only_service(standby.dsn("tensile_worker", "served"), socket, *to_primary):
                reader.execute(b"select tensile_predict_label('flowers', f) from flowers as f")
            assert _counted(primary) == ([(60.0,)], [("a", 60), ("b", 60)]), (
                "the end of the service stores its counts"
            )
            with read_only_service(primary.dsn("tensile_worker"), Path("/nonexistent")) as service:
                assert service.wait() == 2
                assert service.stderr is not None
                assert "the database server is not a hot standby" in service.stderr.read()


def _counted(primary: Database) -> tuple[list[tuple[float]], list[tuple[str, int]]]:
    """Return the counter of predicted rows, and the columns whose drift is measured with their predicted rows."""
    with primary.connect() as connection:
        rows = connection.execute("select value from tensile.totals where name = 'predicted_rows'").fetchall()
        inputs = connection.execute("select feature, predicted_rows from tensile.stat_drift").fetchall()
    return rows, inputs


def _compare_with_single_calls(reader: psycopg.Connection) -> None:
    """Check that whole tables, batches and computed features are predicted as rows are, in the standby's sessions."""
    for model in ("flowers", "computed"):
        single = reader.execute(
            f"select id, tensile_predict_label('{model}', f) from flowers as f order by id".encode()
        ).fetchall()
        assert len(single) == 60
        assert {label for _, label in single} <= {"p", "q"}
        whole = f"select (key -> 'id')::bigint, label from tensile_predict_table('{model}', 'flowers') order by 1"
        assert reader.execute(whole.encode()).fetchall() == single
        batch = f"select tensile_predict_batch_label('{model}', array_agg(f order by id)) from flowers as f"
        assert reader.execute(batch.encode()).fetchone() == ([label for _, label in single],)


def _compare_a_reading_of_the_service(reader: psycopg.Connection) -> None:
    """Check that the service reads a large table under a snapshot that a session of the standby has exported."""
    whole = b"select key, label from tensile_predict_table('flowers', 'large')"
    read = b"select (tensile.bridge('ping', '{}') #>> '{result,readings}')::int"
    assert reader.execute(read).fetchone() == (0,)
    shared = reader.execute(whole).fetchall()
    assert reader.execute(read).fetchone() == (1,)
    with reader.transaction():
        reader.execute("savepoint a")
        assert reader.execute(whole).fetchall() == shared
    assert reader.execute(read).fetchone() == (1,)
    assert len(shared) == 2200


def database_with_a_model(cluster: Cluster, sockets: Path) -> Database:
    """Create a database with models of the table `flowers`, and a table of 4 MB to predict."""
    with psycopg.connect(cluster.dsn(database="postgres"), autocommit=True) as connection:
        connection.execute("create database served")
    database = Database(name="served", cluster=cluster)
    with database.connect() as connection:
        install.install(connection)
        connection.execute(
            "create role demo login; grant tensile_user to demo; grant create on schema public to demo"
        )
        connection.execute("alter role tensile_worker login; alter role tensile_reader login")
        connection.execute("select tensile_set_setting('socket_directory', %s)", [Jsonb(str(sockets))])
    with database.connect("demo") as connection:
        fill(connection, "flowers", "target", "text:(array['p', 'q'])[n % 2 + 1]")
        connection.execute(
            "create table large (id int primary key, a float8, b text, pad text);"
            "alter table large alter column pad set storage plain;"
            "insert into large select n, sin(n), 'x', repeat('x', 2000) from generate_series(1, 2200) as n;"
            "grant select on large to tensile_reader"
        )
    publish(database, "flowers", "flowers")
    publish(database, "computed", "flowers", """, transform => '{"double": "2 * a", "long": "b || b"}'""")
    return database


def _wait_for_replay(primary: Database, reader: psycopg.Connection) -> None:
    with primary.connect() as connection:
        (end,) = connection.execute("select pg_current_wal_lsn()::text").fetchone() or ("",)

    def replayed() -> bool:
        row = reader.execute("select pg_last_wal_replay_lsn() >= %s::pg_lsn", (end,)).fetchone()
        return row is not None and bool(row[0])

    wait_until(replayed)


def _name(reader: psycopg.Connection) -> str:
    row = reader.execute("select tensile.installation()::text").fetchone()
    assert row is not None
    return f"{row[0].replace('-', '')[:12]}-standby-5432"
