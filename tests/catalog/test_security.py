"""What alice and bob may see of one another, and what nobody may write."""

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.errors import CheckViolation, InsufficientPrivilege, InvalidParameterValue

from indb_tensile.catalog import jobs, models, plans
from indb_tensile.catalog.jobs import Progress
from indb_tensile.catalog.plans import DeviceUse, JobUse, PlanRecord
from indb_tensile.errors import LostClaimError
from indb_tensile.job import ClaimToken, ModelVersionId
from tests.catalog.enqueue import claim, enqueue, publication, register, state
from tests.conftest import Database

pytestmark = pytest.mark.postgres

ELSEWHERE = "00000000-0000-0000-0000-000000000000"
OF_JOBS = ("jobs", "job_progress", "job_events", "metrics", "plans", "device_jobs", "data_reports")
OF_MODELS = ("models", "model_versions", "version_bundles", "artifacts")
OF_THE_OWNER = ("version_bundles", "artifacts", "data_reports")


def test_others_see_nothing_of_a_job_or_a_model_and_monitors_see_all_but_weights(database: Database) -> None:
    _trained(database)
    with database.connect("alice") as alice, database.connect("bob") as bob, database.connect("monitor") as monitor:
        for table in (*OF_JOBS, *OF_MODELS):
            assert _count(alice, table) > 0, table
            assert _count(bob, table) == 0, table
            if table not in OF_THE_OWNER:
                assert _count(monitor, table) == _count(alice, table), table
        for table in OF_THE_OWNER:
            with pytest.raises(InsufficientPrivilege):
                _count(monitor, table)


def test_others_change_nothing(database: Database) -> None:
    _trained(database)
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
def test_nobody_sets_an_owner_a_state_or_a_claim(database: Database, column: str) -> None:
    with database.connect("alice") as alice, database.connect("admin") as admin:
        enqueue(alice)
        for connection in (alice, admin):
            with pytest.raises(InsufficientPrivilege):
                connection.execute(f"update tensile.jobs set {column} = {column}")


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
def test_nobody_enqueues_with_more_than_a_request(database: Database, column: str, value: Any) -> None:
    with database.connect("alice") as alice, pytest.raises(InsufficientPrivilege):
        enqueue(alice, **{column: value})


def test_a_specification_that_names_another_model_or_table_is_refused(database: Database) -> None:
    with database.connect("alice") as alice:
        with pytest.raises(CheckViolation, match="jobs_spec_names_the_model"):
            enqueue(alice, "m", spec={"model": "other"})
        with pytest.raises(CheckViolation, match="jobs_spec_names_the_relation"):
            enqueue(alice, "m", spec={"relation": {"oid": 2, "schema": "public", "name": "t"}})


@pytest.mark.parametrize(
    "statement",
    [
        "delete from tensile.jobs",
        "delete from tensile.models",
        "delete from tensile.model_privileges",
        "insert into tensile.model_privileges (model_id, owner_oid, grantee_oid, grantee_name) values (1, 1, 0, '')",
        "update tensile.version_bundles set bundle = '{}'",
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
def test_users_write_nothing_else(database: Database, statement: str) -> None:
    with database.connect("alice") as alice, pytest.raises(InsufficientPrivilege):
        alice.execute(statement)


def test_a_role_without_a_grant_sees_nothing(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("create role stranger")
        try:
            connection.execute("set role stranger")
            with pytest.raises(InsufficientPrivilege, match="permission denied for schema tensile"):
                connection.execute("select from tensile.jobs")
            connection.execute("reset role")
        finally:
            connection.execute("drop role stranger")


def test_a_name_taken_by_another_owner_is_refused_at_enqueue(database: Database) -> None:
    _trained(database)
    with database.connect("alice") as alice, database.connect("bob") as bob:
        with pytest.raises(InsufficientPrivilege, match='model "m" belongs to another role'):
            enqueue(bob, "m")
        enqueue(alice, "new")
        with pytest.raises(InsufficientPrivilege, match='model "new" belongs to another role'):
            enqueue(bob, "new")


def test_a_grantee_sees_the_model_and_neither_changes_it_nor_reads_its_weights(database: Database) -> None:
    _trained(database)
    with database.connect("alice") as alice, database.connect("bob") as bob:
        _grant(alice, "bob")
        assert _count(bob, "models") == _count(bob, "model_versions") == 1
        assert _count(bob, "artifacts") == _count(bob, "version_bundles") == _count(bob, "jobs") == 0
        assert bob.execute("update tensile.models set dropped_at = now()").rowcount == 0
        assert bob.execute("update tensile.model_versions set deployed = false").rowcount == 0
        with pytest.raises(InsufficientPrivilege, match="row-level security"):
            _grant(bob, "demo")
        alice.execute("update tensile.model_privileges set revoked_at = now()")
        assert _count(bob, "models") == _count(bob, "model_privileges") == 0


def test_everybody_may_be_granted_a_model(database: Database) -> None:
    _trained(database)
    with database.connect("alice") as alice, database.connect("bob") as bob:
        alice.execute(
            "insert into tensile.model_privileges (model_id, grantee_oid, grantee_name) values (1, 0, 'public')"
        )
        assert _count(bob, "models") == 1


def test_an_administrator_acts_on_every_job_and_model(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("admin") as admin:
        job = enqueue(alice)
        admin.execute("update tensile.jobs set cancel_requested = true where job_id = %s", (job,))
        assert state(alice, job) == "cancelled"
        alice.execute("insert into tensile.models (name) values ('m')")
        assert admin.execute("update tensile.models set dropped_at = now()").rowcount == 1
        admin.execute("insert into tensile.settings (name, value) values ('socket_directory', '\"/run\"')")
        assert alice.execute("select value from tensile.settings").fetchone() == ("/run",)
        assert admin.execute("select tensile.reset_setting('socket_directory')").fetchone() == (True,)
        assert _count(alice, "settings") == 0
        assert admin.execute("select tensile.forget_jobs(now())").fetchone() == (1,)
        assert _count(alice, "jobs") == _count(alice, "job_events") == 0


def test_the_worker_neither_enqueues_nor_gives_a_job_to_another_owner(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as worker:
        enqueue(alice)
        with pytest.raises(InsufficientPrivilege):
            enqueue(worker)
        for column in ("owner_oid", "owner_name", "spec", "installation", "model_name", "priority"):
            with pytest.raises(InsufficientPrivilege):
                worker.execute(f"update tensile.jobs set {column} = {column}")


def test_an_oid_that_was_another_roles_before_a_restore_owns_nothing(database: Database) -> None:
    _trained(database)
    with database.connect() as postgres, database.connect("bob") as bob, database.connect("alice") as alice:
        for table in ("jobs", "models"):
            postgres.execute(
                f"update tensile.{table} set owner_oid = 'bob'::regrole, installation = %s".encode(), (ELSEWHERE,)
            )
        for table in (*OF_JOBS, *OF_MODELS):
            assert _count(bob, table) == _count(alice, table) == 0, table


def test_a_renamed_role_keeps_its_jobs_and_models_and_views_show_its_present_name(database: Database) -> None:
    with _role(database, "first") as first, database.connect("tensile_worker") as worker:
        here = register(worker)
        enqueue(first)
        version = models.publish_version(worker, claim(worker, here), publication())
        first.execute("reset role")
        first.execute("alter role first rename to renamed")
        first.execute("create role first in role tensile_user")
        first.execute("set role renamed")
        for table in ("jobs", "models", "model_versions", "artifacts", "version_bundles"):
            assert _count(first, table) == 1, table
        for view in ("stat_jobs", "model_list"):
            assert first.execute(f"select owner from tensile.{view}".encode()).fetchall() == [("renamed",)], view
        enqueue(first)
        models.publish_version(worker, claim(worker, here), publication(incumbent=version))
        assert _count(first, "model_versions") == 2
        first.execute("reset role")
        first.execute("set role first")
        assert _count(first, "jobs") == _count(first, "models") == 0


def test_what_a_renamed_role_owned_is_its_own_in_a_copy_on_another_server_too(database: Database) -> None:
    with _role(database, "first") as first, database.connect("tensile_worker") as worker:
        first.execute("insert into tensile.models (name) values ('m')")
        first.execute(
            "insert into tensile.model_privileges (model_id, grantee_oid, grantee_name) values (1, 0, 'public')"
        )
        first.execute("reset role")
        first.execute("alter role first rename to renamed")
        first.execute("create role first in role tensile_user")
        register(worker)
        for table, owner in (("models", "owner_oid = 1"), ("model_privileges", "owner_oid = 1")):
            first.execute(f"update tensile.{table} set {owner}, installation = %s".encode(), (ELSEWHERE,))
        register(worker)
        for role, models_seen in (("renamed", 1), ("first", 1)):  # the second by the grant to public
            first.execute(f"set role {role}".encode())
            assert _count(first, "models") == models_seen
            assert _count(first, "model_privileges") == 1
            revoked = first.execute("update tensile.model_privileges set revoked_at = null").rowcount
            assert revoked == (1 if role == "renamed" else 0)
            first.execute("reset role")


def test_a_copy_within_the_cluster_goes_by_oid_as_a_new_role_may_have_an_old_name(database: Database) -> None:
    with _role(database, "first") as first, database.connect("tensile_worker") as worker:
        first.execute("insert into tensile.models (name) values ('m')")
        first.execute("reset role")
        first.execute("alter role first rename to renamed")
        first.execute("create role first in role tensile_user")
        neighbour = "md5((select system_identifier from pg_control_system())::text || '/' || oid::text)::uuid"
        statement = (
            f"update tensile.models set installation = {neighbour} from pg_database where datname = 'postgres'"
        )
        first.execute(statement.encode())
        register(worker)
        first.execute("set role first")
        assert _count(first, "models") == 0
        first.execute("reset role")
        first.execute("set role renamed")
        assert _count(first, "models") == 1


def test_a_worker_that_starts_on_a_copy_gives_everything_to_the_roles_of_the_same_names(database: Database) -> None:
    _trained(database)
    with (
        database.connect() as postgres,
        database.connect("alice") as alice,
        database.connect("bob") as bob,
        database.connect("tensile_worker") as worker,
    ):
        _grant(alice, "bob")
        waiting = enqueue(alice)
        postgres.execute("update tensile.jobs set owner_oid = 1, installation = %s", (ELSEWHERE,))
        postgres.execute("update tensile.models set owner_oid = 1, installation = %s", (ELSEWHERE,))
        postgres.execute("update tensile.model_privileges set grantee_oid = 2, installation = %s", (ELSEWHERE,))
        assert _count(alice, "models") == _count(alice, "jobs") == _count(bob, "models") == 0
        here = register(worker)
        assert _count(alice, "models") == _count(alice, "jobs") == _count(bob, "models") == 1
        assert jobs.claim_job(worker, here) is None
        with pytest.raises(InsufficientPrivilege):
            worker.execute("select tensile.adopt_jobs()")
        with database.connect("admin") as admin:
            assert admin.execute("select tensile.adopt_jobs()").fetchone() == (1,)
        assert claim(worker, here).job == waiting
        assert _count(alice, "jobs") == 2


def test_no_user_learns_who_owns_which_model(database: Database) -> None:
    with database.connect() as postgres:
        assert postgres.execute("select to_regproc('tensile.owns_model')").fetchone() == (None,)
        definers = postgres.execute(
            """select p.proname from pg_proc as p
                where p.pronamespace = 'tensile'::regnamespace and p.prosecdef and p.prorettype <> 'trigger'::regtype
                  and has_function_privilege('tensile_user', p.oid, 'execute') order by 1"""
        ).fetchall()
        assert [name for (name,) in definers] == ["active_jobs", "make_snapshot", "queue_positions", "seal_snapshot"]


def test_a_job_of_a_role_that_may_train_no_longer_is_never_handed_out(database: Database) -> None:
    with _role(database, "first") as first, database.connect("tensile_worker") as worker:
        job, other = enqueue(first, "a", priority=5), enqueue(first, "b")
        first.execute("reset role")
        with database.connect("alice") as alice:
            healthy = enqueue(alice)
        first.execute("revoke tensile_user from first")
        assert claim(worker, register(worker)).job == healthy
        rows = first.execute(
            "select state::text, error_sqlstate, error_message, error_hint from tensile.jobs where job_id = any (%s)",
            ([job, other],),
        ).fetchall()
        error = 'role "first" may no longer train: it is not a member of tensile_user'
        hint = "As an administrator: grant tensile_user to the role. Then train again."
        assert rows == [("failed", "42501", error, hint)] * 2


def test_a_running_job_of_a_role_that_may_train_no_longer_is_stopped_at_the_next_beat(database: Database) -> None:
    with _role(database, "first") as first, database.connect("tensile_worker") as worker:
        here = register(worker)
        enqueue(first)
        claimed = claim(worker, here)
        held = {claimed.job: claimed.claim}
        assert jobs.beat(worker, here, held).cancelled == ()
        first.execute("reset role")
        first.execute("revoke tensile_user from first")
        assert jobs.beat(worker, here, held).cancelled == (claimed.job,)
        jobs.cancelled(worker, claimed.job, claimed.claim)
        row = first.execute("select state::text, error_message from tensile.jobs").fetchone()
        assert row == ("cancelled", 'role "first" may no longer train: it is not a member of tensile_user')


def test_a_beat_waits_for_no_user_who_holds_the_row_of_a_job_that_has_to_stop(database: Database) -> None:
    with _role(database, "first") as first, database.connect("tensile_worker") as worker:
        here = register(worker)
        enqueue(first)
        claimed = claim(worker, here)
        with first.transaction():
            first.execute("select from tensile.jobs for update")
            with database.connect() as postgres:
                postgres.execute("revoke tensile_user from first")
            worker.execute("set lock_timeout = '1s'")
            assert jobs.beat(worker, here, {claimed.job: claimed.claim}).cancelled == (claimed.job,)
        first.execute("reset role")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"deploy": "now"}, 'deploy is "now", not if_better, always or never'),
        ({"task": "poetry"}, 'task is "poetry", not classification or regression'),
        ({"memory_limit_bytes": -1}, "memory_limit_bytes is -1, not a whole number above 0"),
        ({"memory_limit_bytes": "1"}, '"memory_limit_bytes" is string, not number'),
        ({"max_runtime_s": 0}, "max_runtime_s is 0, not a whole number from 1 to 2147483647"),
        ({"max_runtime_s": 1.5}, "max_runtime_s is 1.5, not a whole number from 1 to 2147483647"),
        ({"split": []}, '"split" is array, not object'),
        ({"hyperparams": None}, '"hyperparams" is null, not object'),
        ({"hyperparams": {"epochs": 10**30}}, "it holds a number beyond 64 bits"),
        ({"preprocess": {"a": [[[1e300]]]}}, "it holds a number beyond 64 bits"),
        ({"architecture": {"hidden": [1]}}, 'architecture has no "type"'),
        ({"features": ["a", 1]}, "features and exclude are not lists of column names"),
        ({"target": None}, '"target" is null, not string'),
    ],
)
def test_a_specification_that_no_worker_can_read_is_refused_at_enqueue(
    database: Database, change: dict[str, Any], fault: str
) -> None:
    with database.connect("alice") as alice:
        with pytest.raises(InvalidParameterValue) as caught:
            enqueue(alice, spec=change)
        assert caught.value.diag.message_primary == f"the specification of the job is refused: {fault}"
        assert _count(alice, "jobs") == _count(alice, "models") == 0


def test_a_specification_too_deep_or_too_large_is_refused_at_enqueue(database: Database) -> None:
    deep: Any = 1
    for _ in range(40):
        deep = [deep]
    with database.connect("alice") as alice:
        with pytest.raises(InvalidParameterValue, match="it is nested deeper than 32 levels"):
            enqueue(alice, spec={"hyperparams": {"x": deep}})
        with pytest.raises(InvalidParameterValue, match=r"it has \d+ bytes, more than 262144"):
            enqueue(alice, spec={"exclude": ["x" * 300_000]})


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
def test_names_that_forge_lines_of_a_log_and_numbers_out_of_range_are_refused(
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


@pytest.mark.parametrize("role", ["alice", "monitor", "admin"])
def test_no_user_gets_a_lock_on_a_shared_table_that_others_wait_for(database: Database, role: str) -> None:
    with database.connect(role) as connection:
        tables = [
            row[0]
            for row in connection.execute(
                "select relname from pg_class where relnamespace = 'tensile'::regnamespace and relkind in ('r', 'p')"
            )
        ]
        assert len(tables) > 20
        taken = []
        for table in tables:
            for mode in MODES:
                with contextlib.suppress(InsufficientPrivilege), connection.transaction():
                    connection.execute(f"lock table tensile.{table} in {mode} mode nowait".encode())
                    taken.append((table, mode))
        assert {mode for _, mode in taken} == {"access share"}
        whole = connection.execute(
            """select c.relname, a.privilege_type, a.grantee::regrole
                 from pg_class as c, aclexplode(c.relacl) as a
                where c.relnamespace = 'tensile'::regnamespace and c.relkind in ('r', 'p')
                  and a.privilege_type <> 'SELECT' and a.grantee <> c.relowner
                  and a.grantee not in ('tensile_worker'::regrole, 'tensile_data'::regrole)"""
        ).fetchall()
        assert whole == []


def _trained(database: Database) -> ModelVersionId:
    """One model of alice, with a row in every table that belongs to a job or a model."""
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        enqueue(alice)
        worker = register(connection)
        claimed = claim(connection, worker)
        progress = Progress(epoch=1, epochs=1, step=1, steps=1, figures={"loss": 0.5})
        jobs.report_progress(connection, claimed.job, claimed.claim, progress)
        record = PlanRecord(generation=1, reason="start", policy="tensile")
        plans.record_plan(connection, claimed.job, claimed.claim, record)
        use = DeviceUse(
            kind="x",
            capacity_bytes=1,
            budget_bytes=1,
            granted_bytes=1,
            used_bytes=1,
            high_water_bytes=1,
            host_bytes=0,
        )
        part = JobUse(job=claimed.job, granted_bytes=1, used_bytes=1, high_water_bytes=1)
        plans.record_device(connection, worker, use, [part])
        jobs.save_report(connection, claimed.job, claimed.claim, REPORT)
        return models.publish_version(connection, claimed, publication())


REPORT = [{"section": "rows", "subject": None, "fact": "read", "value": "9", "warning": None}]


def test_a_report_is_its_owners_alone_even_where_others_see_the_job(database: Database) -> None:
    _trained(database)
    with database.connect() as postgres:
        postgres.execute("grant tensile_monitor to bob")
    try:
        with database.connect("alice") as alice, database.connect("bob") as bob:
            assert alice.execute("select * from tensile_data_report(1)").fetchall() == [
                ("rows", None, "read", "9", None)
            ]
            assert _count(bob, "jobs") == 1
            assert _count(bob, "data_reports") == 0
            with pytest.raises(InsufficientPrivilege, match="job 1 belongs to another role"):
                bob.execute("select * from tensile_data_report(1)")
            with pytest.raises(psycopg.errors.UndefinedObject, match="there is no job 2"):
                alice.execute("select * from tensile_data_report(2)")
            enqueue(alice)
            assert alice.execute("select * from tensile_data_report(2)").fetchall() == []
    finally:
        with database.connect() as postgres:
            postgres.execute("revoke tensile_monitor from bob")


def test_a_report_is_bounded_and_written_under_the_claim_alone(database: Database) -> None:
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


def _count(connection: psycopg.Connection[Any], table: str) -> int:
    row = connection.execute(f"select count(*) from tensile.{table}").fetchone()
    assert row is not None
    return int(row[0])


def _grant(connection: psycopg.Connection[Any], role: str) -> None:
    connection.execute(
        "insert into tensile.model_privileges (model_id, grantee_oid, grantee_name)"
        " select 1, oid, rolname from pg_roles where rolname = %s",
        (role,),
    )


@contextlib.contextmanager
def _role(database: Database, name: str) -> Iterator[psycopg.Connection[Any]]:
    """A superuser's connection that has become a new user; what it made and that role are gone afterwards."""
    with database.connect() as connection:
        connection.execute(f"create role {name} in role tensile_user".encode())
        try:
            connection.execute(f"set role {name}".encode())
            yield connection
        finally:
            connection.execute("reset role")
            for made in (name, "renamed"):
                connection.execute(f"drop role if exists {made}".encode())
