"""Check a database that is dumped and restored into another cluster: models predict the same, and its copied queue
does not run.
"""

import subprocess
from collections.abc import Iterator

import psycopg
import pytest

from indb_tensile.cluster import Cluster, find_programs, system_user
from tests.conftest import ROLES, Database
from tests.e2e.conftest import Service, service_on
from tests.open_directory import open_directory

pytestmark = pytest.mark.postgres

PREDICTIONS = """
select id, tensile_predict_label('labels', i), tensile_predict_vector('labels', i), tensile_predict('amounts', i)
  from iris as i order by id"""
TRAIN = """
select tensile_train(%s, 'iris', target => %s, architecture => '{"type": "mlp", "hidden": [16]}',
                     hyperparams => '{"epochs": 5}')"""


@pytest.fixture
def other_cluster() -> Iterator[Cluster]:
    """Another running cluster, with initdb's settings."""
    with open_directory("suite-copy-") as directory:
        cluster = Cluster(directory=directory, programs=find_programs(), system_user=system_user())
        cluster.create(roles=ROLES)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop(mode="immediate")


@pytest.mark.nightly
def test_restored_copy_predicts_the_same_and_does_not_run_the_copied_queue(
    service: Service, other_cluster: Cluster
) -> None:
    service.start()
    with service.database.connect("demo") as demo:
        demo.execute("select tensile_load_dataset('iris')")
        trained = [train(demo, "labels", "target"), train(demo, "amounts", "petal_width")]
        assert service.until_ended(*trained) == ["succeeded"] * 2
        predictions = demo.execute(PREDICTIONS).fetchall()
        demo.execute("select tensile_grant_model('labels', 'bob')")
        service.stop()
        queued_job = train(demo, "labels", "target")

    with service_on(restore_copy(service.database, other_cluster)) as copy:
        copy.start()
        with copy.database.connect("demo") as demo:
            assert demo.execute(PREDICTIONS).fetchall() == predictions
            # If the copied job were claimed at all, it would be claimed first, because it is older.
            younger_job = train(demo, "another", "target")
            assert copy.until_ended(younger_job) == ["succeeded"]
            assert younger_job > queued_job
            assert copy.state(queued_job) == "queued"
            second_job = train(demo, "labels", "target")
            assert copy.until_ended(second_job) == ["succeeded"]
            versions = demo.execute("select version from tensile_training_info('labels')").fetchall()
            assert versions == [(2,), (1,)]
        with copy.database.connect("bob") as bob:
            label = "select tensile_predict_label(%s, array[5.1, 3.5, 1.4, 0.2])"
            assert bob.execute(label, ("labels",)).fetchone()
            with pytest.raises(psycopg.errors.UndefinedObject, match='there is no model "amounts"'):
                bob.execute(label, ("amounts",))


def train(connection: psycopg.Connection, model: str, target: str) -> int:
    row = connection.execute(TRAIN, (model, target)).fetchone()
    assert row is not None
    return int(row[0])


def restore_copy(source: Database, cluster: Cluster) -> Database:
    """Copy the database to another cluster like an administrator: first the roles, then the database."""
    copy = Database(name="copied", cluster=cluster)
    roles = run_program(source.cluster, "pg_dumpall", "--roles-only", "--dbname", source.dsn())
    # Continues after the error that role postgres exists.
    run_program(cluster, "psql", "--quiet", "--dbname", cluster.dsn(database="postgres"), text=roles)
    dump = run_program(source.cluster, "pg_dump", "--dbname", source.dsn())
    with psycopg.connect(cluster.dsn(database="postgres"), autocommit=True) as connection:
        connection.execute("create database copied")
    run_program(cluster, "psql", "--quiet", "--set", "ON_ERROR_STOP=1", "--dbname", copy.dsn(), text=dump)
    with copy.connect() as connection:
        # The path belongs to the other machine.
        connection.execute("delete from tensile.settings where name = 'socket_directory'")
    return copy


def run_program(cluster: Cluster, program: str, *arguments: str, text: str | None = None) -> str:
    completed = subprocess.run(
        [cluster.programs.path(program), *arguments], input=text, capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout
