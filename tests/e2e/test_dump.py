"""A database is dumped and restored into another cluster: its models predict as before, its queue does not run."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from indb_tensile.cluster import Cluster, find_programs, system_user
from tests.conftest import ROLES, Database
from tests.e2e.conftest import Service, service_on

pytestmark = pytest.mark.postgres

PREDICTIONS = """
select id, tensile_predict_label('labels', i), tensile_predict_vector('labels', i), tensile_predict('amounts', i)
  from iris as i order by id"""
TRAIN = """
select tensile_train(%s, 'iris', target => %s, architecture => '{"type": "mlp", "hidden": [16]}',
                     hyperparams => '{"epochs": 5}')"""


@pytest.fixture
def elsewhere() -> Iterator[Cluster]:
    """Another running cluster, as initdb leaves it."""
    directory = Path(tempfile.mkdtemp(prefix="tensile-copy-"))
    directory.chmod(0o755)  # the cluster's system user must be able to enter
    made = Cluster(directory=directory, programs=find_programs(), system_user=system_user())
    made.create(roles=ROLES)
    try:
        made.start()
        yield made
    finally:
        made.stop(mode="immediate")
        shutil.rmtree(directory)


def test_a_restored_copy_predicts_the_same_and_leaves_the_queue_alone(service: Service, elsewhere: Cluster) -> None:
    service.start()
    with service.database.connect("demo") as demo:
        demo.execute("select tensile_load_dataset('iris')")
        trained = [train(demo, "labels", "target"), train(demo, "amounts", "petal_width")]
        assert service.until_ended(*trained) == ["succeeded"] * 2
        predictions = demo.execute(PREDICTIONS).fetchall()
        demo.execute("select tensile_grant_model('labels', 'bob')")
        service.stop()
        waiting = train(demo, "labels", "target")

    with service_on(restored(service.database, elsewhere)) as copy:
        copy.start()
        with copy.database.connect("demo") as demo:
            assert demo.execute(PREDICTIONS).fetchall() == predictions
            # An older job would have been claimed first.
            younger = train(demo, "another", "target")
            assert copy.until_ended(younger) == ["succeeded"]
            assert younger > waiting
            assert copy.state(waiting) == "queued"
            again = train(demo, "labels", "target")
            assert copy.until_ended(again) == ["succeeded"]
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


def restored(source: Database, cluster: Cluster) -> Database:
    """A copy of the database on another cluster, as an administrator makes one: roles first, then the rest."""
    copy = Database(name="copied", cluster=cluster)
    roles = call(source.cluster, "pg_dumpall", "--roles-only", "--dbname", source.dsn())
    call(cluster, "psql", "--quiet", "--dbname", cluster.dsn(database="postgres"), text=roles)  # postgres is there
    dump = call(source.cluster, "pg_dump", "--dbname", source.dsn())
    with psycopg.connect(cluster.dsn(database="postgres"), autocommit=True) as connection:
        connection.execute("create database copied")
    call(cluster, "psql", "--quiet", "--set", "ON_ERROR_STOP=1", "--dbname", copy.dsn(), text=dump)
    with copy.connect() as connection:
        connection.execute("delete from tensile.settings where name = 'socket_directory'")  # of the other machine
    return copy


def call(cluster: Cluster, program: str, *arguments: str, text: str | None = None) -> str:
    done = subprocess.run(
        [cluster.programs.path(program), *arguments], input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
