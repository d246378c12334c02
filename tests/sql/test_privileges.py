"""Check privileges: another user can neither see, cancel, replace nor use a user's jobs and models, also not through
the bridge function.
"""

from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.conftest import Database

from .conftest import Connection, Refused, Serve, refused, value
from .fakes import result

pytestmark = [pytest.mark.postgres, pytest.mark.clears_database]

TRAIN = "select tensile_train('flowers', 'iris', target => 'species')"
NO_MODEL = ("42704", 'there is no model "flowers"')


def bridge(connection: Connection, verb: str, rows: list[Jsonb] | None = None, **request: Any) -> dict[str, Any]:
    answer: dict[str, Any] = value(connection, "select tensile.bridge(%s, %s, %s)", verb, Jsonb(request), rows)
    return answer


@pytest.mark.usefixtures("published")
def test_another_user_sees_no_row(alice: Connection, bob: Connection) -> None:
    alice.execute(TRAIN)

    views = ("stat_jobs", "stat_queue", "stat_progress_train", "stat_plan", "stat_device_jobs", "model_list")
    assert [value(bob, f"select count(*) from tensile.{view}") for view in views] == [0] * len(views)


@pytest.mark.usefixtures("published")
def test_another_user_can_neither_cancel_predict_nor_drop(alice: Connection, bob: Connection, serve: Serve) -> None:
    service = serve(lambda _: result({"values": [1.0]}))
    job = value(alice, TRAIN)

    def error_of(statement: str) -> tuple[str, str]:
        error = refused(bob, statement)
        return error.sqlstate, error.message

    no_job = ("42704", f"there is no job {job}")
    assert error_of(f"select tensile_cancel({job})") == no_job
    assert error_of(f"select tensile_wait({job})") == no_job
    assert error_of(f"select tensile_retry({job})") == no_job
    assert error_of(f"select tensile_set_priority({job}, 1)") == no_job
    for call in (
        "tensile_predict('flowers', 1)",
        "tensile_predict_label('flowers', 1)",
        "tensile_predict_batch('flowers', array[1])",
        "tensile_evaluate('flowers')",
        "tensile_confusion_matrix('flowers')",
        "tensile_roc_curve('flowers')",
        "tensile_calibration('flowers')",
        "tensile_label_metrics('flowers')",
        "tensile_feature_importance('flowers')",
        "tensile_explain_prediction('flowers', 1)",
        "tensile_training_info('flowers')",
        "tensile_training_history('flowers')",
        "tensile_drop_model('flowers')",
        "tensile_deploy('flowers', 1)",
        "tensile_retrain('flowers')",
        "tensile_grant_model('flowers', 'bob')",
        "tensile_revoke_model('flowers', 'alice')",
    ):
        assert error_of(f"select {call}") == NO_MODEL
    assert service.requests == []
    assert value(alice, "select (state, cancel_requested)::text from tensile.jobs") == "(queued,f)"


@pytest.mark.usefixtures("published")
def test_direct_call_of_the_bridge_gives_no_more_rights(alice: Connection, bob: Connection, serve: Serve) -> None:
    service = serve(lambda _: result({"values": [1.0]}))
    iris = value(alice, "select 'iris'::regclass::oid::bigint")

    answers = [
        bridge(bob, "predict", model="flowers", rows=[Jsonb(1)], kind="value"),
        bridge(bob, "evaluate", model="flowers", relation=iris),
        bridge(bob, "train", model="mine", relation=iris, target="species"),
        bridge(bob, "explain", model="mine", relation=iris, target="species"),
        bridge(bob, "create_model", model="flowers"),
        bridge(bob, "anything"),
    ]

    assert [answer["error"]["sqlstate"] for answer in answers] == [
        "42704",
        "42704",
        "42501",
        "42501",
        "42501",
        "22023",
    ]
    assert service.requests == []


@pytest.mark.shares_database
@pytest.mark.parametrize(
    ("verb", "request_"),
    [
        ("predict", {"model": "flowers"}),
        ("predict", {"model": ["flowers"], "rows": []}),
        ("predict", {"model": "flowers", "rows": [Jsonb(1)], "kind": "version"}),
        ("predict", {"model": "flowers", "rows": [Jsonb(1)], "form": "sql"}),
        ("predict", {"model": "flowers", "rows": [Jsonb(1)], "version": "1; drop table iris"}),
        ("train", {"model": "m", "relation": "iris"}),
        ("train", {"model": "m", "relation": True}),
        ("train", {"model": "m"}),
        ("train", {}),
        ("load_dataset", {}),
        ("load_dataset", {"dataset": 3}),
    ],
)
@pytest.mark.usefixtures("published")
def test_malformed_request_is_refused(alice: Connection, verb: str, request_: dict[str, Any]) -> None:
    answer = bridge(alice, verb, **request_)

    assert answer["error"]["sqlstate"] == "22023"


def test_request_cannot_name_a_service_address(alice: Connection, published: int, serve: Serve) -> None:
    service = serve(lambda _: result({"values": [1.0]}))

    answer = bridge(
        alice,
        "predict",
        model="flowers",
        rows=[Jsonb(1)],
        version_id=published + 1,
        directory="/tmp/elsewhere",
        socket_directory="/tmp/elsewhere",
        service_name="other",
    )

    assert answer == {"ok": True, "result": {"values": [1.0], "version": 1}}
    assert service.requests[0]["version"] == published


@pytest.mark.usefixtures("published")
def test_granted_model_can_only_be_predicted_with(alice: Connection, bob: Connection, serve: Serve) -> None:
    serve(lambda _: result({"values": [1.0]}))
    alice.execute("select tensile_grant_model('flowers', 'bob'); grant select on iris to bob")

    assert value(bob, "select tensile_predict('flowers', 1)") == 1.0
    assert refused(bob, "select tensile_drop_model('flowers')").message == 'model "flowers" belongs to another role'
    assert refused(bob, TRAIN).message == 'model "flowers" belongs to another role'
    assert refused(bob, "select tensile_grant_model('flowers', 'demo')").sqlstate == "42501"

    alice.execute("select tensile_revoke_model('flowers', 'bob')")
    assert refused(bob, "select tensile_predict('flowers', 1)").sqlstate == "42704"


@pytest.mark.usefixtures("published")
def test_revoked_model_can_be_granted_again_or_else_the_grant_is_deleted(
    alice: Connection, bob: Connection, admin: Connection
) -> None:
    sees = "select count(*) from tensile.model_list"
    for granted in (1, 0, 1, 0):
        alice.execute(f"select tensile_{'grant' if granted else 'revoke'}_model('flowers', 'bob')".encode())
        assert value(bob, sees) == granted
    assert value(admin, "select tensile.delete_dropped()") == 1
    assert value(admin, "select count(*) from tensile.model_privileges") == 0
    assert value(alice, sees) == 1


@pytest.mark.usefixtures("published")
def test_grant_to_public_is_for_every_user(alice: Connection, bob: Connection, serve: Serve) -> None:
    serve(lambda _: result({"values": [1.0]}))

    alice.execute("select tensile_grant_model('flowers', 'public')")

    assert value(bob, "select tensile_predict('flowers', 1)") == 1.0
    assert refused(alice, "select tensile_grant_model('flowers', 'nobody')").message == 'there is no role "nobody"'


def test_only_an_administrator_sets_the_socket_directory(alice: Connection, database: Database) -> None:
    error = refused(alice, """select tensile_set_setting('socket_directory', '"/tmp"')""")
    with database.connect("admin") as admin:
        admin.execute("""select tensile_set_setting('socket_directory', '"/tmp"')""")
        admin.execute("""select tensile_set_setting('socket_directory', '"/run"')""")

    assert error.sqlstate == "42501"
    assert value(alice, "select (value #>> '{}', changed_by)::text from tensile.settings") == "(/run,admin)"


def test_administrator_cancels_any_users_job(alice: Connection, database: Database) -> None:
    job = value(alice, TRAIN)
    with database.connect("admin") as admin:
        assert value(admin, "select tensile_cancel(%s)", job) is True

    assert value(alice, "select state::text from tensile.jobs") == "cancelled"


def test_monitor_sees_every_row_and_calls_no_function(alice: Connection, database: Database) -> None:
    job = value(alice, TRAIN)
    with database.connect("monitor") as monitor:
        assert value(monitor, "select job_id from tensile.stat_queue") == job
        assert refused(monitor, "select tensile_cancel(%s)", job).sqlstate == "42501"
        assert refused(monitor, "select tensile.bridge('ping', '{}')").sqlstate == "42501"


def test_role_without_membership_reads_and_calls_nothing(database: Database, admin: Connection) -> None:
    admin.execute("grant tensile_user to demo; revoke tensile_user from bob")
    try:
        with database.connect("bob") as stranger:
            for call in ("select tensile_version()", "select tensile_check()"):
                error = refused(stranger, call)
                assert error.sqlstate == "42501"
                assert error.hint == "Ask an administrator for: grant tensile_user to bob;"
            assert refused(stranger, "select * from tensile.model_list").sqlstate == "42501"
    finally:
        admin.execute("grant tensile_user to bob")  # roles belong to the whole cluster


def test_no_function_for_users_is_security_definer(admin: Connection) -> None:
    definers = admin.execute(
        """select proname from pg_proc
            where prosecdef
              and (pronamespace = 'public'::regnamespace or proname in ('bridge', 'call', 'prediction'))"""
    ).fetchall()

    assert definers == []


def test_operator_of_the_caller_does_not_widen_a_drop(alice: Connection, admin: Connection) -> None:
    name = value(admin, "select current_database()")
    admin.execute(f"grant create on database {name} to alice")
    alice.execute(
        """create schema own;
           create function own.always(text, text) returns boolean language sql return true;
           create operator own.= (leftarg = text, rightarg = text, function = own.always)"""
    )
    alice.execute("select tensile_create_model('first'), tensile_create_model('second')")
    alice.execute("set search_path = own, pg_catalog, public")

    assert refused(alice, "select tensile_drop_model('third')").sqlstate == "42704"
    alice.execute("reset search_path")
    assert value(alice, "select count(*) from tensile.model_list") == 2


def test_name_of_a_model_in_training_is_reserved_for_its_owner(alice: Connection, bob: Connection) -> None:
    job = value(alice, TRAIN)
    bob.execute("select tensile_create_model('another')")

    name_taken = ("42501", 'model "flowers" belongs to another role')
    for statement in (
        "select tensile_create_model('flowers')",
        "insert into tensile.models (name) values ('flowers')",
        "update tensile.models set name = 'flowers' where name = 'another'",
    ):
        assert (refused(bob, statement).sqlstate, refused(bob, statement).message) == name_taken
    alice.execute("select tensile_cancel(%s)", (job,))
    bob.execute("select tensile_create_model('flowers')")


def test_queue_counts_every_users_jobs_and_shows_only_own_jobs(alice: Connection, bob: Connection) -> None:
    alice.execute(TRAIN)
    alice.execute("grant select on iris to bob")
    low_job = value(bob, "select tensile_train('b', 'iris', target => 'species', priority => -1)")
    high_job = value(bob, "select tensile_train('b', 'iris', target => 'species', priority => 1)")

    rows = bob.execute("select position, job_id, waits_for from tensile.stat_queue").fetchall()

    none = "a controller: none is alive"
    assert rows == [(2, high_job, none), (3, low_job, none)]


def test_raised_error_may_contain_a_percent_sign(alice: Connection) -> None:
    assert refused(alice, "select tensile.raise_error('22023', '50% of it', '', null)") == Refused(
        "22023", "50% of it"
    )


def test_grantee_must_be_an_existing_role(alice: Connection) -> None:
    alice.execute("select tensile_create_model('mine')")
    hint = "Name a role, or public for all roles."

    for verb, to in (("grant", "to"), ("revoke", "from")):
        missing = refused(alice, f"select tensile_{verb}_model('mine', 'nosuchrole')")
        unnamed = refused(alice, f"select tensile_{verb}_model('mine', null)")

        assert (missing.sqlstate, missing.message, missing.hint) == ("42704", 'there is no role "nosuchrole"', hint)
        assert (unnamed.sqlstate, unnamed.hint) == ("22004", hint)
        assert unnamed.message == f'no role is named to {verb} model "mine" {to}'
    alice.execute("select tensile_revoke_model('mine', 'bob'), tensile_revoke_model('mine', 'public')")


@pytest.mark.parametrize(
    "call",
    [
        "tensile_predict('flowers', 1)",
        "tensile_evaluate('flowers')",
        "tensile_roc_curve('flowers')",
        "tensile_feature_importance('flowers')",
        "tensile_forecast_metrics('flowers')",
        "tensile_cancel(1)",
        "tensile_wait(1)",
        "tensile_trial_info(1)",
    ],
)
def test_role_without_rights_is_told_the_grant_that_it_lacks(admin: Connection, call: str) -> None:
    with admin.transaction(force_rollback=True):
        admin.execute("create role clerk; set local role clerk")

        with pytest.raises(psycopg.Error) as caught:
            admin.execute(f"select * from {call}".encode())

    error = caught.value.diag
    assert (error.sqlstate, error.message_primary, error.message_hint) == (
        "42501",
        'role "clerk" is not a member of tensile_user',
        "Ask an administrator for: grant tensile_user to clerk;",
    )
