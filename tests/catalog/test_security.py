"""Check which rows of the catalog users, grantees, monitors, administrators and workers may read and write."""

import contextlib
from typing import Any

import psycopg
import pytest
from psycopg.errors import CheckViolation, InsufficientPrivilege, InvalidParameterValue

from indb_tensile.catalog import jobs, models
from indb_tensile.errors import LostClaimError
from indb_tensile.job import ClaimToken
from tests.catalog.enqueue import claim, enqueue, publication, register, state
from tests.catalog.trained_model import JOB_TABLES, MODEL_TABLES, REPORT, count_rows, grant_model, train_model
from tests.conftest import Database

pytestmark = pytest.mark.postgres


OWNERS_TABLES = ("version_bundles", "artifacts", "data_reports")
PARTLY_MONITORED = ("version_figures",)  # monitors see baselines, and counts of inputs without values


def test_other_users_see_no_job_or_model_and_monitors_see_all_but_weights(database: Database) -> None:
    train_model(database)
    with database.connect("alice") as alice, database.connect("bob") as bob, database.connect("monitor") as monitor:
        for table in (*JOB_TABLES, *MODEL_TABLES):
            assert count_rows(alice, table) > 0, table
            assert count_rows(bob, table) == 0, table
            if table not in (*OWNERS_TABLES, *PARTLY_MONITORED):
                assert count_rows(monitor, table) == count_rows(alice, table), table
        for table in OWNERS_TABLES:
            with pytest.raises(InsufficientPrivilege):
                count_rows(monitor, table)
        assert set(monitor.execute("select name from tensile.version_figures")) <= {("baseline",), ("input_counts",)}


def test_other_users_change_no_row(database: Database) -> None:
    train_model(database)
    with database.connect("bob") as bob:
        for statement in (
            "update tensile.jobs set cancel_requested = true",
            "update tensile.jobs set priority = 5",
            "update tensile.models set definition = '{}'",
            "update tensile.model_versions set deployed = false",
            "update tensile.models set dropped_at = now()",
            "update tensile.model_privileges set revoked_at = now()",
        ):
            assert bob.execute(statement).rowcount == 0, statement


@pytest.mark.parametrize(
    "column",
    ["owner_oid", "owner_name", "state", "claim", "installation", "worker_id", "attempt", "max_attempts", "spec"],
)
def test_no_user_sets_an_owner_a_state_or_a_claim(database: Database, column: str) -> None:
    with database.connect("alice") as alice, database.connect("admin") as admin:
        enqueue(alice)
        for connection in (alice, admin):
            with pytest.raises(InsufficientPrivilege):
                connection.execute(f"update tensile.jobs set {column} = {column}")


@pytest.mark.shares_database
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("owner_name", "bob"),
        ("owner_oid", 10),
        ("state", "succeeded"),
        ("installation", "00000000-0000-0000-0000-000000000000"),
        ("max_attempts", 99),
        ("enqueued_xact", "3"),
    ],
)
def test_enqueue_sets_no_column_beyond_the_request(database: Database, column: str, value: Any) -> None:
    with database.connect("alice") as alice, pytest.raises(InsufficientPrivilege):
        enqueue(alice, **{column: value})


def test_specification_that_names_another_model_or_table_is_refused(database: Database) -> None:
    with database.connect("alice") as alice:
        with pytest.raises(CheckViolation, match="jobs_spec_names_the_model"):
            enqueue(alice, "m", spec={"model": "other"})
        with pytest.raises(CheckViolation, match="jobs_spec_names_the_relation"):
            enqueue(alice, "m", spec={"relation": {"oid": 2, "schema": "public", "name": "t"}})


@pytest.mark.shares_database
@pytest.mark.parametrize(
    "statement",
    [
        "delete from tensile.jobs",
        "delete from tensile.models",
        "delete from tensile.model_privileges",
        "insert into tensile.model_privileges (model_id, owner_oid, grantee_oid, grantee_name) values (1, 1, 0, '')",
        "update tensile.version_bundles set bundle = '{}'",
        "update tensile.version_figures set figure = '{}'",
        "select tensile.delete_dropped()",
        "select tensile.forget_jobs(now())",
        "insert into tensile.job_events (job_id, kind) values (1, 'x')",
        "insert into tensile.model_versions (model_id) values (1)",
        "insert into tensile.artifacts (version_id, chunk_no, chunk) values (1, 0, '')",
        "insert into tensile.settings values ('socket_directory', '\"/tmp\"')",
        "update tensile.workers set service_name = 'mine'",
        "update tensile.op_latency set latency_ns = 0",
        "select nextval('tensile.claim_seq')",
        "select * from tensile.checkpoints",
        "truncate tensile.jobs",
        "select tensile.record_job_changes()",
    ],
)
def test_users_cannot_write_other_tables(database: Database, statement: str) -> None:
    with database.connect("alice") as alice, pytest.raises(InsufficientPrivilege):
        alice.execute(statement)


def test_role_without_a_grant_sees_nothing(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("create role stranger")
        try:
            connection.execute("set role stranger")
            with pytest.raises(InsufficientPrivilege, match="permission denied for schema tensile"):
                connection.execute("select from tensile.jobs")
            connection.execute("reset role")
        finally:
            connection.execute("drop role stranger")


def test_model_name_of_another_owner_is_refused_at_enqueue(database: Database) -> None:
    train_model(database)
    with database.connect("alice") as alice, database.connect("bob") as bob:
        with pytest.raises(InsufficientPrivilege, match='model "m" belongs to another role'):
            enqueue(bob, "m")
        enqueue(alice, "new")
        with pytest.raises(InsufficientPrivilege, match='model "new" belongs to another role'):
            enqueue(bob, "new")


def test_grantee_sees_the_model_and_neither_changes_it_nor_reads_its_weights(database: Database) -> None:
    train_model(database)
    with database.connect("alice") as alice, database.connect("bob") as bob:
        grant_model(alice, "bob")
        assert count_rows(bob, "models") == count_rows(bob, "model_versions") == 1
        assert count_rows(bob, "artifacts") == count_rows(bob, "version_bundles") == count_rows(bob, "jobs") == 0
        assert bob.execute("update tensile.models set dropped_at = now()").rowcount == 0
        assert bob.execute("update tensile.model_versions set deployed = false").rowcount == 0
        with pytest.raises(InsufficientPrivilege, match="row-level security"):
            grant_model(bob, "demo")
        alice.execute("update tensile.model_privileges set revoked_at = now()")
        assert count_rows(bob, "models") == count_rows(bob, "model_privileges") == 0


def test_model_can_be_granted_to_public(database: Database) -> None:
    train_model(database)
    with database.connect("alice") as alice, database.connect("bob") as bob:
        alice.execute(
            "insert into tensile.model_privileges (model_id, grantee_oid, grantee_name) values (1, 0, 'public')"
        )
        assert count_rows(bob, "models") == 1


def test_administrator_acts_on_every_job_and_model(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("admin") as admin:
        job = enqueue(alice)
        admin.execute("update tensile.jobs set cancel_requested = true where job_id = %s", (job,))
        assert state(alice, job) == "cancelled"
        alice.execute("insert into tensile.models (name) values ('m')")
        assert admin.execute("update tensile.models set dropped_at = now()").rowcount == 1
        admin.execute("insert into tensile.settings (name, value) values ('socket_directory', '\"/run\"')")
        assert alice.execute("select value from tensile.settings").fetchone() == ("/run",)
        assert admin.execute("select tensile.reset_setting('socket_directory')").fetchone() == (True,)
        assert count_rows(alice, "settings") == 0
        assert admin.execute("select tensile.forget_jobs(now())").fetchone() == (1,)
        assert count_rows(alice, "jobs") == count_rows(alice, "job_events") == 0


def test_worker_neither_enqueues_nor_changes_the_owner_of_a_job(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as worker:
        enqueue(alice)
        with pytest.raises(InsufficientPrivilege):
            enqueue(worker)
        for column in ("owner_oid", "owner_name", "spec", "installation", "model_name", "priority"):
            with pytest.raises(InsufficientPrivilege):
                worker.execute(f"update tensile.jobs set {column} = {column}")


def test_users_may_call_only_known_security_definer_functions(database: Database) -> None:
    with database.connect() as postgres:
        assert postgres.execute("select to_regproc('tensile.owns_model')").fetchone() == (None,)
        definers = postgres.execute(
            """select p.proname from pg_proc as p
                where p.pronamespace = 'tensile'::regnamespace and p.prosecdef and p.prorettype <> 'trigger'::regtype
                  and has_function_privilege('tensile_user', p.oid, 'execute') order by 1"""
        ).fetchall()
        assert [name for (name,) in definers] == [
            "active_jobs",
            "gang_words",
            "make_prediction_table",
            "make_snapshot",
            "queue_positions",
            "seal_snapshot",
        ]


@pytest.mark.shares_database
@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"deploy": "now"}, 'deploy is "now", not if_better, always or never'),
        (
            {"task": "poetry"},
            'task is "poetry", not classification, regression, multilabel, forecast, anomaly or pairs',
        ),
        ({"memory_limit_bytes": -1}, "memory_limit_bytes is -1, not a whole number above 0"),
        ({"memory_limit_bytes": "1"}, '"memory_limit_bytes" is string, not number'),
        ({"max_runtime_s": 0}, "max_runtime_s is 0, not a whole number from 1 to 2147483647"),
        ({"devices": 0}, "devices is 0, not a whole number from 1 to 64"),
        ({"devices": 2.5}, "devices is 2.5, not a whole number from 1 to 64"),
        (
            {"devices": 2, "search": {"space": {}, "trials": 2}},
            "devices is 2, and each trial of a search trains on one device",
        ),
        ({"devices": "2"}, '"devices" is string, not number'),
        ({"max_runtime_s": 1.5}, "max_runtime_s is 1.5, not a whole number from 1 to 2147483647"),
        ({"split": []}, '"split" is array, not object'),
        ({"hyperparams": None}, '"hyperparams" is null, not object'),
        ({"hyperparams": {"epochs": 10**30}}, "it holds a number beyond 64 bits"),
        ({"preprocess": {"a": [[[1e300]]]}}, "it holds a number beyond 64 bits"),
        ({"architecture": {"hidden": [1]}}, 'architecture has no "type"'),
        ({"features": ["a", 1]}, "features, exclude and targets are not lists of column names"),
        ({"target": None}, '"target" is null, not string'),
    ],
)
def test_unreadable_specification_is_refused_at_enqueue(
    database: Database, change: dict[str, Any], fault: str
) -> None:
    with database.connect("alice") as alice:
        with pytest.raises(InvalidParameterValue) as caught:
            enqueue(alice, spec=change)
        assert caught.value.diag.message_primary == f"the specification of the job is refused: {fault}"
        assert count_rows(alice, "jobs") == count_rows(alice, "models") == 0


def test_too_deep_or_too_large_specification_is_refused_at_enqueue(database: Database) -> None:
    deep: Any = 1
    for _ in range(40):
        deep = [deep]
    with database.connect("alice") as alice:
        with pytest.raises(InvalidParameterValue, match="it is nested deeper than 32 levels"):
            enqueue(alice, spec={"hyperparams": {"x": deep}})
        with pytest.raises(InvalidParameterValue, match=r"it has \d+ bytes, more than 262144"):
            enqueue(alice, spec={"exclude": ["x" * 300_000]})


@pytest.mark.shares_database
@pytest.mark.parametrize(
    ("columns", "constraint"),
    [
        ({"model": "m\n2026-01-01 controller INFO all is well"}, "printable"),
        ({"model": "m\x1b[2J"}, "printable"),
        ({"model": "m\u202eevil"}, "printable"),
        ({"model": "m" * 201}, "short"),
        ({"idempotency_key": "k\n"}, "jobs_idempotency_key_is_printable"),
        ({"idempotency_key": "k" * 201}, "jobs_idempotency_key_is_short"),
        ({"priority": 1001}, "jobs_priority_is_bounded"),
        ({"priority": -1001}, "jobs_priority_is_bounded"),
    ],
)
def test_unprintable_or_long_names_and_priorities_out_of_range_are_refused(
    database: Database, columns: dict[str, Any], constraint: str
) -> None:
    with database.connect("alice") as alice:
        with pytest.raises(CheckViolation, match=constraint):
            enqueue(alice, **columns)
        if "model" in columns:
            with pytest.raises(CheckViolation, match=f"models_name_is_{constraint}"):
                alice.execute("insert into tensile.models (name) values (%s)", (columns["model"],))


MODES = (
    *("access share", "row share", "row exclusive", "share update exclusive"),
    *("share", "share row exclusive", "exclusive", "access exclusive"),
)


@pytest.mark.shares_database
@pytest.mark.parametrize("role", ["alice", "monitor", "admin"])
def test_users_lock_shared_tables_only_in_access_share_mode(database: Database, role: str) -> None:
    with database.connect(role) as connection:
        tables = [
            row[0]
            for row in connection.execute(
                "select relname from pg_class where relnamespace = 'tensile'::regnamespace and relkind in ('r', 'p')"
            )
        ]
        assert len(tables) > 20
        lockable = []
        for table in tables:
            for mode in MODES:
                with contextlib.suppress(InsufficientPrivilege), connection.transaction():
                    connection.execute(f"lock table tensile.{table} in {mode} mode nowait".encode())
                    lockable.append((table, mode))
        assert {mode for _, mode in lockable} == {"access share"}
        table_privileges = connection.execute(
            """select c.relname, a.privilege_type, a.grantee::regrole
                 from pg_class as c, aclexplode(c.relacl) as a
                where c.relnamespace = 'tensile'::regnamespace and c.relkind in ('r', 'p')
                  and a.privilege_type <> 'SELECT' and a.grantee <> c.relowner
                  and a.grantee not in ('tensile_worker'::regrole, 'tensile_data'::regrole)"""
        ).fetchall()
        assert table_privileges == []


def test_only_the_owner_reads_a_data_report_even_if_others_see_the_job(database: Database) -> None:
    train_model(database)
    with database.connect() as postgres:
        postgres.execute("grant tensile_monitor to bob")
    try:
        with database.connect("alice") as alice, database.connect("bob") as bob:
            assert alice.execute("select * from tensile_data_report(1)").fetchall() == [
                ("rows", None, "read", "9", None)
            ]
            assert count_rows(bob, "jobs") == 1
            assert count_rows(bob, "data_reports") == 0
            with pytest.raises(InsufficientPrivilege, match="job 1 belongs to another role"):
                bob.execute("select * from tensile_data_report(1)")
            with pytest.raises(psycopg.errors.UndefinedObject, match="there is no job 2"):
                alice.execute("select * from tensile_data_report(2)")
            enqueue(alice)
            assert alice.execute("select * from tensile_data_report(2)").fetchall() == []
    finally:
        with database.connect() as postgres:
            postgres.execute("revoke tensile_monitor from bob")


def test_data_report_is_bounded_and_needs_the_current_claim(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        enqueue(alice)
        claimed = claim(connection, register(connection))
        with pytest.raises(CheckViolation):
            jobs.save_report(connection, claimed.job, claimed.claim, [{"value": "x" * 1_100_000}])
        jobs.save_report(connection, claimed.job, claimed.claim, REPORT)
        with pytest.raises(LostClaimError):
            jobs.save_report(connection, claimed.job, ClaimToken(claimed.claim + 1), [])
        models.publish_version(connection, claimed, publication(report=[*REPORT, *REPORT]))
        assert len(alice.execute("select * from tensile_data_report(1)").fetchall()) == 2
