"""Check the manual's set-up on an existing server: init as a superuser, two passwords, a controller."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from indb_tensile.cluster import Cluster

pytestmark = pytest.mark.postgres

NAME = "own_server"
PASSWORD = "correct horse"  # of a temporary server
DEADLINE_S = 180.0
TENSILE = str(Path(sys.executable).with_name("tensile"))


@pytest.fixture
def superuser(cluster: Cluster, template: str) -> Iterator[psycopg.Connection]:
    """A superuser's session in an empty database. Its pg_hba.conf requires a password of worker and reader."""
    del template  # the fixture creates the roles
    hba = cluster.data / "pg_hba.conf"
    before = hba.read_text()
    with psycopg.connect(cluster.dsn(database="postgres"), autocommit=True) as maintenance:
        maintenance.execute(f"create database {NAME}")
        hba.write_text(f"local {NAME} tensile_worker,tensile_reader scram-sha-256\n{before}")
        maintenance.execute("select pg_reload_conf()")
        try:
            with psycopg.connect(cluster.dsn(database=NAME), autocommit=True) as connection:
                yield connection
        finally:
            hba.write_text(before)
            maintenance.execute("select pg_reload_conf()")
            maintenance.execute("alter role tensile_worker password null; alter role tensile_reader password null")
            maintenance.execute(f"drop database {NAME} with (force)")


def tensile(*arguments: str) -> None:
    """Run a command of the command line, which must succeed."""
    command = [TENSILE, *arguments]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr


def until(condition: Callable[[], object], process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Poll until the condition is true, while the process runs."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, log.read_text()
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)


@pytest.mark.nightly
def test_own_server_is_set_up_as_in_the_manual(cluster: Cluster, superuser: psycopg.Connection) -> None:
    tensile("init", "--dsn", cluster.dsn(database=NAME))
    superuser.execute(f"alter role tensile_worker password '{PASSWORD}'")
    superuser.execute(f"alter role tensile_reader password '{PASSWORD}2'")
    superuser.execute("grant tensile_user to alice")
    superuser.execute("grant create on schema public to alice")
    with tempfile.TemporaryDirectory(prefix="tensile-own-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        superuser.execute("select tensile_set_setting('socket_directory', to_jsonb(%s::text))", (name,))
        log = directory / "log"
        dsn = f"{cluster.dsn(user='tensile_worker', database=NAME)} password='{PASSWORD}'"
        reader_dsn = f"{cluster.dsn(user='tensile_reader', database=NAME)} password='{PASSWORD}2'"
        with log.open("wb") as output:
            controller = subprocess.Popen(
                [TENSILE, "controller", "--dsn", dsn],
                env=os.environ
                | {"TENSILE_READER_DSN": reader_dsn}
                | {"TENSILE_SERVICE_DIRECTORY": name, "TENSILE_SPARE_TRAINERS": "1", "TENSILE_SURVEY_S": "0"},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            ready = "select 1 from tensile.workers where service_name is not null"
            until(lambda: superuser.execute(ready).fetchone(), controller, log)
            with psycopg.connect(cluster.dsn(user="alice", database=NAME), autocommit=True) as alice:
                alice.execute("select tensile_load_dataset('iris')")
                alice.execute("select tensile_train('iris', 'iris')")
                ended = "select 1 from tensile.stat_jobs where state = 'succeeded'"
                until(lambda: alice.execute(ended).fetchone(), controller, log)
                prediction = alice.execute(
                    "select tensile_predict_label('iris', i) from iris as i limit 1"
                ).fetchone()
                assert prediction is not None
                assert prediction[0] in {"setosa", "versicolor", "virginica"}
        finally:
            controller.terminate()
            assert controller.wait(timeout=120) == 0
