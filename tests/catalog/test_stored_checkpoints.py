"""Check checkpoints in the catalog: replaced as a whole, checked by digest, one for each store, deleted when the job
ends.
"""

import psycopg
import pytest

from indb_tensile.catalog import jobs, models, stored_checkpoints
from indb_tensile.catalog.chunks import CHUNK_BYTES
from indb_tensile.catalog.stored_checkpoints import StoredCheckpoint, digest_of
from indb_tensile.errors import DatabaseError, LostClaimError
from indb_tensile.job import CheckpointStore, ClaimedJob, ClaimToken, JobId
from tests.catalog.enqueue import claim, enqueue, publication, register
from tests.conftest import Database

pytestmark = pytest.mark.postgres


def _claim_and_start(connection: psycopg.Connection) -> ClaimedJob:
    claimed = claim(connection, register(connection))
    jobs.start_running(connection, claimed.job, claimed.claim)
    return claimed


def _catalog_checkpoint(data: bytes, epochs_done: int) -> StoredCheckpoint:
    return StoredCheckpoint(
        store=CheckpointStore.CATALOG,
        host="",
        position={"epochs_done": epochs_done},
        size_bytes=len(data),
        digest=digest_of(data),
    )


def _local_checkpoint(host: str) -> StoredCheckpoint:
    return StoredCheckpoint(
        store=CheckpointStore.LOCAL, host=host, position={"epochs_done": 3}, size_bytes=4, digest=digest_of(b"file")
    )


def test_checkpoint_is_replaced_as_a_whole_and_survives_a_requeue(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        claimed = _claim_and_start(connection)
        assert stored_checkpoints.checkpoints(connection, job) == ()
        long_state = b"x" * (2 * CHUNK_BYTES + 1)
        stored_checkpoints.save_checkpoint(connection, job, claimed.claim, [long_state], {"epochs_done": 1})
        (stored,) = stored_checkpoints.checkpoints(connection, job)
        assert stored == _catalog_checkpoint(long_state, 1)
        assert stored_checkpoints.load_checkpoint(connection, job, stored) == long_state
        stored_checkpoints.save_checkpoint(connection, job, claimed.claim, [b"short"], {"epochs_done": 2})
        jobs.requeue(connection, job, claimed.claim, "the controller stops")
        (stored,) = stored_checkpoints.checkpoints(connection, job)
        assert stored == _catalog_checkpoint(b"short", 2)
        assert stored_checkpoints.load_checkpoint(connection, job, stored) == b"short"
        assert connection.execute("select count(*) from tensile.checkpoint_chunks").fetchone() == (1,)


def test_each_host_and_the_catalog_have_one_checkpoint_until_the_job_ends(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        claimed = _claim_and_start(connection)
        for host in ("one", "two", "one"):
            stored_checkpoints.record_checkpoint(connection, job, claimed.claim, _local_checkpoint(host))
        stored_checkpoints.save_checkpoint(connection, job, claimed.claim, [b"state"], {"epochs_done": 1})
        assert set(map(repr, stored_checkpoints.checkpoints(connection, job))) == set(
            map(repr, (_local_checkpoint("one"), _local_checkpoint("two"), _catalog_checkpoint(b"state", 1)))
        )
        assert stored_checkpoints.host_checkpoints(connection, "one") == {(job, digest_of(b"file"))}
        models.publish_version(connection, claimed, publication())
        assert stored_checkpoints.checkpoints(connection, job) == ()
        assert stored_checkpoints.host_checkpoints(connection, "one") == frozenset()
        assert connection.execute("select count(*) from tensile.checkpoint_chunks").fetchone() == (0,)


def test_damaged_checkpoint_is_not_loaded(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        claimed = _claim_and_start(connection)
        stored_checkpoints.save_checkpoint(connection, job, claimed.claim, [b"state"], {})
        connection.execute("update tensile.checkpoint_chunks set chunk = 'wrong'")
        (stored,) = stored_checkpoints.checkpoints(connection, job)
        with pytest.raises(DatabaseError, match=f"the checkpoint of job {job} in the catalog is damaged"):
            stored_checkpoints.load_checkpoint(connection, job, stored)


def test_lost_claim_records_no_checkpoint_file(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        claimed = _claim_and_start(connection)
        with pytest.raises(LostClaimError):
            stored_checkpoints.record_checkpoint(
                connection, job, ClaimToken(claimed.claim + 1), _local_checkpoint("one")
            )
        assert stored_checkpoints.checkpoints(connection, JobId(job)) == ()


def test_only_living_controllers_of_other_hosts_count(database: Database) -> None:
    with database.connect("tensile_worker") as connection:
        assert not stored_checkpoints.has_other_hosts(connection, "host")
        worker = register(connection)  # on "host"
        assert not stored_checkpoints.has_other_hosts(connection, "host")
        assert stored_checkpoints.has_other_hosts(connection, "elsewhere")
        jobs.leave(connection, worker)
        assert not stored_checkpoints.has_other_hosts(connection, "elsewhere")


def test_checkpoints_reuse_their_space_and_do_not_grow_the_table_of_weights(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        claimed = _claim_and_start(connection)
        data = bytes(range(256)) * 4096
        with database.connect() as postgres:
            for epoch in range(12):
                stored_checkpoints.save_checkpoint(connection, job, claimed.claim, [data], {"epochs_done": epoch})
                postgres.execute("vacuum tensile.checkpoint_chunks")
            row = postgres.execute(
                "select pg_total_relation_size('tensile.artifacts') < 65536,"
                " pg_total_relation_size('tensile.checkpoint_chunks')"
            ).fetchone()
        assert row is not None
        assert row[0]
        assert row[1] < 3 * len(data), "space for the checkpoint and the previous checkpoint"
