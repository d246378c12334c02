"""Check how model versions are published, deployed, loaded and dropped, and how names of models are reserved."""

import hashlib
import math
from typing import Any

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege, LockNotAvailable, ObjectInUse

from indb_tensile.catalog import jobs, models
from indb_tensile.catalog.chunks import CHUNK_BYTES
from indb_tensile.catalog.models import why_not_deployed
from indb_tensile.errors import (
    DatabaseError,
    LostClaimError,
    MissingError,
    OvertakenError,
    PrivilegeError,
    RequestError,
)
from indb_tensile.job import ClaimedJob, ClaimToken, ModelVersionId
from tests.catalog.enqueue import claim, enqueue, publication, register, specification, state
from tests.conftest import Database

STAYS = "version 3, which stays deployed"


@pytest.mark.parametrize(
    ("deploy", "metric", "higher", "incumbent", "reason"),
    [
        ("always", 0.1, True, 0.9, None),
        ("never", 0.9, True, 0.1, "deploy is never"),
        ("if_better", 0.9, True, 0.1, None),
        ("if_better", 0.1, True, 0.9, f"its r2 on the test rows, 0.1, is not better than the 0.9 of {STAYS}"),
        ("if_better", 0.5, True, 0.5, f"its r2 on the test rows, 0.5, is not better than the 0.5 of {STAYS}"),
        ("if_better", 0.1, False, 0.9, None),
        ("if_better", 0.9, False, 0.1, f"its r2 on the test rows, 0.9, is not better than the 0.1 of {STAYS}"),
        ("if_better", -0.1, True, -0.9, None),
        ("if_better", 0.1, False, math.inf, None),
    ],
)
def test_version_is_deployed_as_the_job_says_or_the_reason_is_named(
    deploy: str, metric: float, higher: bool, incumbent: float, reason: str | None
) -> None:
    new_version = publication(metric=metric, higher_is_better=higher, incumbent_metric=incumbent)
    assert why_not_deployed(deploy, new_version, 3) == reason


@pytest.mark.parametrize("undefined", [None, math.nan])
def test_version_with_an_undefined_metric_is_not_deployed(undefined: float | None) -> None:
    new = publication(metric=undefined, incumbent_metric=0.1)
    reason = f"it cannot be compared with {STAYS}: its r2 is not defined on the test rows"
    assert why_not_deployed("if_better", new, 3) == reason
    old = publication(metric=0.1, incumbent_metric=undefined)
    reason = f"it cannot be compared with {STAYS}: the r2 of that is not defined on the test rows"
    assert why_not_deployed("if_better", old, 3) == reason


def test_version_that_cannot_be_compared_is_deployed_only_with_deploy_always() -> None:
    new_version = publication(metric=1.0, incumbent_metric=0.1, incomparable="its classes are others")
    reason = f"it cannot be compared with {STAYS}: its classes are others"
    assert why_not_deployed("if_better", new_version, 3) == reason
    assert why_not_deployed("always", new_version, 3) is None


def test_first_version_is_deployed_except_with_deploy_never() -> None:
    new_version = publication(metric=math.nan)
    assert why_not_deployed("if_better", new_version, None) is None
    assert why_not_deployed("never", new_version, None) == "deploy is never"


@pytest.mark.postgres
def test_published_version_is_loaded_unchanged(database: Database) -> None:
    weights = bytes(range(256)) * (CHUNK_BYTES // 256) + b"and a bit"
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        claimed = _claim_and_start(connection)
        version = models.publish_version(connection, claimed, publication(weights=weights, data_digest="d"))
        assert models.deployed_version(connection, "m") == version
        assert models.load_version(connection, version) == models.StoredVersion(
            version=version,
            model_id=1,
            model="m",
            owner_oid=claimed.owner_oid,
            number=1,
            task=publication().task,
            target="y",
            architecture={"type": "mlp"},
            bundle={"columns": ["a"]},
            weights=weights,
            parameters=7,
            metric_name="r2",
            metric=0.5,
            higher_is_better=True,
            metrics={"r2": 0.5},
            data_digest="d",
            deployed=True,
        )
        row = alice.execute("select state::text, version_id, worker_id from tensile.jobs").fetchone()
        assert row == ("succeeded", version, None)
        assert alice.execute("select name, owner_name, last_spec from tensile.models").fetchone() == (
            "m",
            "alice",
            specification("m"),
        )
        assert connection.execute("select count(*) from tensile.artifacts").fetchone() == (2,)
        assert job == claimed.job


@pytest.mark.postgres
def test_repeated_publication_returns_the_same_version(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        enqueue(alice)
        claimed = _claim_and_start(connection)
        version = models.publish_version(connection, claimed, publication())
        assert models.publish_version(connection, claimed, publication()) == version
        assert connection.execute("select count(*) from tensile.model_versions").fetchone() == (1,)


@pytest.mark.postgres
def test_lost_claim_publishes_nothing(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        enqueue(alice)
        claimed = _claim_and_start(connection)
        stale = ClaimToken(claimed.claim - 1)
        with pytest.raises(LostClaimError):
            models.publish_version(connection, _with_claim(claimed, stale), publication())
        assert connection.execute("select count(*) from tensile.model_versions").fetchone() == (0,)


@pytest.mark.postgres
def test_versions_are_numbered_and_only_a_better_version_is_deployed(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        worker = register(connection)
        first = _publish(alice, connection, worker, metric=0.5)
        worse = _publish(alice, connection, worker, metric=0.4, incumbent=first, incumbent_metric=0.5)
        better = _publish(alice, connection, worker, metric=0.6, incumbent=first, incumbent_metric=0.5)
        rows = alice.execute("select version_id, number, deployed from tensile.model_versions order by number")
        assert rows.fetchall() == [(first, 1, False), (worse, 2, False), (better, 3, True)]


@pytest.mark.postgres
def test_version_compared_with_a_replaced_version_must_be_compared_again(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        worker = register(connection)
        first = _publish(alice, connection, worker, metric=0.5)
        job = enqueue(alice)
        claimed = claim(connection, worker)
        second = _publish(alice, connection, worker, metric=0.9, incumbent=first, incumbent_metric=0.5)
        new_version = publication(metric=0.6, incumbent=first, incumbent_metric=0.5)
        with pytest.raises(OvertakenError, match='judged by a version of model "m" that is not deployed now'):
            models.publish_version(connection, claimed, new_version)
        assert state(alice, job) == "starting"
        new_version = publication(metric=0.6, incumbent=second, incumbent_metric=0.9)
        models.publish_version(connection, claimed, new_version)
        assert models.deployed_version(connection, "m") == second


@pytest.mark.postgres
def test_reason_for_no_deployment_is_shown_with_the_job(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        worker = register(connection)
        first = _publish(alice, connection, worker)
        _publish(alice, connection, worker, metric=0.9, incumbent=first, incomparable="its classes are others")
        reason = "it cannot be compared with version 1, which stays deployed: its classes are others"
        not_deployed = alice.execute("select version, not_deployed from tensile.stat_jobs order by 1").fetchall()
        assert not_deployed == [(1, None), (2, reason)]
        events = alice.execute("select job_id, detail from tensile.job_events where kind = 'not_deployed'").fetchall()
        assert events == [(2, {"reason": reason})]


@pytest.mark.postgres
@pytest.mark.parametrize("publication_order", [(0, 1), (1, 0)])
def test_next_run_inherits_from_the_run_that_started_last(
    database: Database, publication_order: tuple[int, int]
) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        worker = register(connection)
        claims = []
        for epochs in (1, 2):
            enqueue(alice, spec={"hyperparams": {"epochs": epochs}})
            claims.append(claim(connection, worker))
        for place in publication_order:
            new_version = publication(incumbent=models.deployed_version(connection, "m"), incumbent_metric=0.9)
            models.publish_version(connection, claims[place], new_version)
        last_run = "select last_job_id, last_spec #>> '{hyperparams,epochs}' from tensile.models"
        assert alice.execute(last_run.encode()).fetchone() == (claims[1].job, "2")


@pytest.mark.postgres
def test_publication_does_not_wait_for_open_enqueues_or_new_models(database: Database) -> None:
    with (
        database.connect("alice") as alice,
        database.connect("alice") as other_session,
        database.connect("bob") as bob,
        database.connect("tensile_worker") as connection,
    ):
        enqueue(alice)
        claimed = _claim_and_start(connection)
        connection.execute("set lock_timeout = '60s'")
        with other_session.transaction(), bob.transaction():
            enqueue(other_session)
            enqueue(bob, "another")
            bob.execute("insert into tensile.models (name) values ('third')")
            models.publish_version(connection, claimed, publication())


@pytest.mark.postgres
def test_enqueued_training_reserves_the_models_name(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("bob") as bob:
        enqueue(alice)
        for statement in ("insert into tensile.models (name) values ('m')", None):
            with pytest.raises(InsufficientPrivilege, match='model "m" belongs to another role'):
                enqueue(bob) if statement is None else bob.execute(statement.encode())
        assert alice.execute("select name, owner_name, definition from tensile.models").fetchall() == [
            ("m", "alice", None)
        ]
        assert alice.execute("select * from tensile.model_list").fetchall() == []


@pytest.mark.postgres
def test_wait_for_an_uncommitted_model_name_is_limited(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("bob") as bob:
        with bob.transaction():
            bob.execute("insert into tensile.models (name) values ('m')")
            with pytest.raises(LockNotAvailable, match='model "m" is being created by a transaction that'):
                enqueue(alice)
        with pytest.raises(InsufficientPrivilege, match='model "m" belongs to another role'):
            enqueue(alice)


@pytest.mark.postgres
def test_name_is_free_again_after_the_last_training_has_ended_without_a_version(database: Database) -> None:
    with (
        database.connect("alice") as alice,
        database.connect("bob") as bob,
        database.connect("tensile_worker") as connection,
    ):
        enqueue(alice)
        queued_job = enqueue(alice)
        claimed = _claim_and_start(connection)
        jobs.fail(connection, claimed.job, claimed.claim, RequestError("no"))
        assert _model_names(connection) == ["m"]
        alice.execute("update tensile.jobs set cancel_requested = true where job_id = %s", (queued_job,))
        assert _model_names(connection) == []
        enqueue(bob)


@pytest.mark.postgres
def test_name_with_a_locked_row_is_freed_later(database: Database) -> None:
    with (
        database.connect("alice") as alice,
        database.connect("alice") as locking_session,
        database.connect("tensile_worker") as connection,
    ):
        enqueue(alice)
        claimed = _claim_and_start(connection)
        with locking_session.transaction():
            locking_session.execute("select from tensile.models for update")
            jobs.fail(connection, claimed.job, claimed.claim, RequestError("no"))
            assert connection.execute("select tensile.delete_dropped()").fetchone() == (0,)
        assert _model_names(connection) == ["m"]
        assert connection.execute("select tensile.delete_dropped()").fetchone() == (1,)
        assert _model_names(connection) == []


@pytest.mark.postgres
def test_defined_or_published_model_keeps_its_name_when_a_training_fails(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        alice.execute("insert into tensile.models (name, definition) values ('defined', '{}')")
        enqueue(alice)
        worker = register(connection)
        models.publish_version(connection, claim(connection, worker), publication())
        for name in ("m", "defined"):
            enqueue(alice, name)
            claimed = claim(connection, worker)
            jobs.fail(connection, claimed.job, claimed.claim, RequestError("no"))
        assert _model_names(connection) == ["defined", "m"]
        assert connection.execute("select tensile.delete_dropped()").fetchone() == (0,)


@pytest.mark.postgres
def test_model_in_training_is_neither_dropped_nor_renamed(database: Database) -> None:
    with database.connect("alice") as alice:
        job = enqueue(alice)
        for change in ("name = 'other'", "dropped_at = now()"):
            with pytest.raises(ObjectInUse, match=f'model "m" is being trained by job {job}'):
                alice.execute(f"update tensile.models set {change}".encode())


@pytest.mark.postgres
def test_job_without_its_models_row_publishes_nothing(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        claimed = _claim_and_start(connection)
        with database.connect() as postgres:
            postgres.execute("delete from tensile.models")
        with pytest.raises(PrivilegeError, match='role "alice" has no model "m" to publish to'):
            models.publish_version(connection, claimed, publication())
        assert state(alice, job) == "running"


@pytest.mark.postgres
def test_changed_weights_are_not_loaded(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        enqueue(alice)
        version = models.publish_version(connection, _claim_and_start(connection), publication(weights=b"weights"))
        with database.connect() as postgres:
            postgres.execute("update tensile.artifacts set chunk = 'wEights'")
        with pytest.raises(DatabaseError) as caught:
            models.load_version(connection, version)
        published, present = (hashlib.sha256(weights).hexdigest() for weights in (b"weights", b"wEights"))
        assert caught.value.message == 'the weights of version 1 of model "m" are not those that were published'
        assert caught.value.detail == f"Their SHA-256 is {present}, not {published} (version_id {version})."
        assert "train the model again" in caught.value.hint


@pytest.mark.postgres
def test_missing_version_is_named(database: Database) -> None:
    with database.connect("tensile_worker") as connection:
        assert models.deployed_version(connection, "nothing") is None
        with pytest.raises(MissingError, match="model version 7 does not exist"):
            models.load_version(connection, ModelVersionId(7))


@pytest.mark.postgres
def test_weights_without_a_chunk_are_not_loaded(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        enqueue(alice)
        version = models.publish_version(connection, _claim_and_start(connection), publication())
        with database.connect() as postgres:
            postgres.execute("delete from tensile.artifacts")
        with pytest.raises(DatabaseError, match=f"the bytes stored for version {version} are 0, not 7"):
            models.load_version(connection, version)


@pytest.mark.postgres
def test_a_version_takes_over_the_baseline_of_equal_rows_of_its_own_model(database: Database) -> None:
    with database.connect("tensile_worker") as connection, database.connect("alice") as alice:
        worker = register(connection)
        first = _publish(alice, connection, worker)
        second = _publish(alice, connection, worker, incumbent=first)
        assert not models.repeat_baseline(connection, first, "aa"), "no version has a baseline yet"
        models.add_figure(connection, first, "baseline", {"metrics": {"r2": 0.5}})
        assert not models.repeat_baseline(connection, second, "bb"), "its rows are others"
        third = _publish(alice, connection, worker, incumbent=first)
        assert models.repeat_baseline(connection, third, "aa")
        enqueue(alice, "other")
        foreign = models.publish_version(connection, claim(connection, worker), publication())
        assert not models.repeat_baseline(connection, foreign, "aa")
        figures = "select version_id, figure from tensile.version_figures where name = 'baseline' order by 1"
        assert connection.execute(figures).fetchall() == [
            (first, {"metrics": {"r2": 0.5}}), (third, {"metrics": {"r2": 0.5}}),
        ]  # fmt: skip


def test_dropped_model_is_invisible_and_its_bytes_are_deleted_in_portions(database: Database) -> None:
    with (
        database.connect("alice") as alice,
        database.connect("monitor") as monitor,
        database.connect("tensile_worker") as connection,
    ):
        enqueue(alice)
        version = models.publish_version(connection, _claim_and_start(connection), publication())
        alice.execute("update tensile.models set dropped_at = now()")
        for table in ("models", "model_versions", "version_bundles", "artifacts", "model_list"):
            assert alice.execute(f"select count(*) from tensile.{table}".encode()).fetchone() == (0,), table
        assert monitor.execute("select count(*) from tensile.models").fetchone() == (0,)
        assert models.deployed_version(connection, "m") is None
        with pytest.raises(MissingError):
            models.load_version(connection, version)
        alice.execute("insert into tensile.models (name) values ('m')")

        deleted = [connection.execute("select tensile.delete_dropped(1)").fetchone() for _ in range(6)]
        assert deleted == [(1,)] * 5 + [(0,)], "a chunk, its version, its deployment, the model, an unused name"
        for table in ("models", "model_versions", "version_bundles", "artifacts"):
            assert connection.execute(f"select count(*) from tensile.{table}".encode()).fetchone() == (0,), table
        assert alice.execute("select state::text, version_id from tensile.jobs").fetchone() == ("succeeded", version)


def _model_names(connection: psycopg.Connection[Any]) -> list[str]:
    return [row[0] for row in connection.execute("select name from tensile.models order by name")]


def _claim_and_start(connection: psycopg.Connection[Any]) -> ClaimedJob:
    claimed = claim(connection, register(connection))
    jobs.start_running(connection, claimed.job, claimed.claim)
    return claimed


def _publish(
    alice: psycopg.Connection[Any], connection: psycopg.Connection[Any], worker: Any, **changes: Any
) -> ModelVersionId:
    enqueue(alice)
    return models.publish_version(connection, claim(connection, worker), publication(**changes))


def _with_claim(claimed: ClaimedJob, token: ClaimToken) -> ClaimedJob:
    return ClaimedJob(
        job=claimed.job, claim=token, attempt=claimed.attempt, owner_oid=claimed.owner_oid, spec=claimed.spec
    )
