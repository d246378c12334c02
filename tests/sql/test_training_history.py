"""Check the history of a version's training: its epochs, who reads it, and why there is none."""

import psycopg
import pytest

from indb_tensile.catalog import jobs, models
from indb_tensile.catalog.jobs import Progress
from tests.catalog.enqueue import claim, enqueue, publication, register
from tests.conftest import Database

from .conftest import refused

pytestmark = pytest.mark.postgres


def train(database: Database, alice: psycopg.Connection) -> None:
    """Publish a version of alice's model `m`, whose best epoch is the first of two."""
    with database.connect("tensile_worker") as worker:
        enqueue(alice, "m")
        claimed = claim(worker, register(worker))
        for epoch, valid_loss in ((1, 0.5), (2, 0.75)):
            figures = {"loss": 1.0 / epoch, "valid_loss": valid_loss, "r2": 0.5, "roc_auc": None}
            progress = Progress(epoch=epoch, epochs=2, step=1, steps=1, figures=figures)
            jobs.report_progress(worker, claimed.job, claimed.claim, progress)
        models.publish_version(worker, claimed, publication(training={"best_epoch": 1}))


def test_history_has_both_losses_and_the_published_epoch(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("bob") as bob:
        train(database, alice)
        metrics = {"r2": 0.5, "roc_auc": None}
        expected = [(1, 1.0, 0.5, metrics, True), (2, 0.5, 0.75, metrics, False)]
        assert alice.execute("select * from tensile_training_history('m')").fetchall() == expected
        assert alice.execute("select * from tensile_training_history('m', 1)").fetchall() == expected
        error = refused(alice, "select * from tensile_training_history('m', 2)")
        assert (error.sqlstate, error.message) == ("42704", 'model "m" has no version 2')

        alice.execute("select tensile_grant_model('m', 'bob')")
        error = refused(bob, "select * from tensile_training_history('m')")
        assert (error.sqlstate, error.message) == ("42501", 'model "m" belongs to another role')

        alice.execute("update tensile.model_versions set deployed = false")
        error = refused(alice, "select * from tensile_training_history('m')")
        assert (error.sqlstate, error.message) == ("55000", 'model "m" has no deployed version')
        with database.connect() as postgres:
            postgres.execute("delete from tensile.jobs")
        error = refused(alice, "select * from tensile_training_history('m', 1)")
        assert (error.sqlstate, error.message) == ("55000", 'version 1 of model "m" has no history')
        assert "retain_jobs" in (error.detail or "")
