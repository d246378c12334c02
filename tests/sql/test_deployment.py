"""Check tensile_deploy, tensile_rollback and tensile_rename_model: the version that predicts, history and rights."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tests.conftest import Database
from tests.service.fakes import wait_until
from tests.sql.conftest import Connection, Refused, refused, value

pytestmark = [pytest.mark.postgres, pytest.mark.shares_database]

VERSIONS = """
insert into tensile.model_versions (model_id, number, job_id, task, target, architecture, metric_name, metric,
    higher_is_better, metrics, parameters, weights_bytes, deployed, deployed_why, training)
select m.model_id, v.number, 90 + v.number, v.task::tensile.task, 'y', '{"type": "mlp"}', v.name, v.metric, v.higher,
       '{}', 1, 4, v.number = 3, case v.number when 3 then 'deploy is always' end,
       '{"hyperparams": {"epochs": 3}, "features": ["a", "b"], "rows": 60, "split": {"seed": 1}, "best_epoch": 2}'
  from tensile.models as m,
       (values (1, 'regression', 'mae', 0.5, false), (2, 'regression', 'mae', 0.1, false),
               (3, 'regression', 'mae', 0.3, false), (4, 'regression', 'mae', 'nan', false),
               (5, 'classification', 'accuracy', 0.01, true)) as v (number, task, name, metric, higher)
 where m.name = %s order by v.number"""
WAITING = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
HISTORY = """
select from_version, to_version, deployed_by::text, job_id, reason from tensile.deployment_history
 where model = %s order by deployed_at, to_version = 3 desc"""


@pytest.fixture
def model(request: pytest.FixtureRequest, admin: Connection, alice: Connection) -> str:
    """A model of alice's with five versions, of which version 3 is deployed."""
    name = request.node.name.replace("'", "")
    alice.execute("select tensile_create_model(%s)", (name,))
    admin.execute(VERSIONS.encode(), (name,))
    return str(name)


def deployed(connection: Connection, model: str) -> Any:
    return value(connection, "select deployed from tensile.model_list where model = %s", model)


def history(connection: Connection, model: str) -> list[tuple[Any, ...]]:
    return connection.execute(HISTORY.encode(), (model,)).fetchall()


def test_a_version_is_deployed_by_number_as_the_best_or_as_the_one_before(alice: Connection, model: str) -> None:
    assert value(alice, "select tensile_deploy(%s, 1)", model) == 1
    assert deployed(alice, model) == 1
    assert value(alice, "select tensile_deploy(%s, 'best')", model) == 2
    assert value(alice, "select tensile_deploy(%s, 'previous', 'the best one was not')", model) == 1
    assert value(alice, "select tensile_rollback(%s)", model) == 2
    assert value(alice, "select tensile_deploy(%s, 4::bigint, reason => null)", model) == 4
    notices: list[str] = []
    alice.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))
    assert value(alice, "select tensile_deploy(%s, '4')", model) == 4
    assert notices == [f'version 4 of model "{model}" is deployed already']
    assert deployed(alice, model) == 4
    assert history(alice, model) == [
        (None, 3, "postgres", 93, "deploy is always"),
        (3, 1, "alice", None, None),
        (1, 2, "alice", None, "best mae: 0.1"),
        (2, 1, "alice", None, "the best one was not"),
        (1, 2, "alice", None, "deployed before"),
        (2, 4, "alice", None, None),
    ]


def test_the_version_before_is_one_that_still_exists(admin: Connection, alice: Connection, model: str) -> None:
    for number in (1, 2, 4):
        alice.execute("select tensile_deploy(%s, %s::int)", (model, number))
    admin.execute("delete from tensile.model_versions where number = 2 and not deployed")
    assert value(alice, "select tensile_rollback(%s)", model) == 1


def test_a_deployment_that_is_rolled_back_leaves_nothing(database: Database, alice: Connection, model: str) -> None:
    with database.connect("alice") as session, session.transaction(force_rollback=True):
        session.execute("select tensile_deploy(%s, 1)", (model,))
        assert deployed(session, model) == 1
        session.execute("select tensile_deploy(%s, 2)", (model,))
    assert deployed(alice, model) == 3
    assert [row[:2] for row in history(alice, model)] == [(None, 3)]


def test_a_direct_update_is_part_of_the_history_too(alice: Connection, model: str) -> None:
    alice.execute(
        "update tensile.model_versions as v set deployed = false from tensile.models as m"
        " where m.model_id = v.model_id and m.name = %s",
        (model,),
    )
    assert history(alice, model)[-1] == (3, None, "alice", None, None)
    assert value(alice, "select tensile_deploy(%s, 'best')", model) == 5  # that of the newest version's task
    assert history(alice, model)[-1] == (None, 5, "alice", None, "best accuracy: 0.01")
    assert refused(alice, "update tensile.model_versions set deployed_by = 'bob'").sqlstate == "42501"
    assert refused(alice, "insert into tensile.deployments (model_id) values (1)").sqlstate == "42501"


@pytest.mark.parametrize(
    ("version", "error"),
    [
        ("9", ("42704", "has no version 9", "Its newest version is 5.")),
        ("99999999999", ("22023", 'version is "99999999999"', "A version is the number")),
        ("'latest'", ("22023", 'version is "latest"', "A version is the number")),
        ("-1", ("22023", 'version is "-1"', "A version is the number")),
        ("null", ("22004", "version is null", "A version is the number")),
        ("'previous'", ("55000", "has no version that was deployed before", "Its newest version is 5.")),
    ],
)
def test_a_wrong_version_is_refused(alice: Connection, model: str, version: str, error: tuple[str, ...]) -> None:
    refusal = refused(alice, f"select tensile_deploy(%s, {version})", model)
    assert (refusal.sqlstate, error[1] in refusal.message, (refusal.detail or "").startswith(error[2])) == (
        error[0],
        True,
        True,
    )
    assert refusal.hint == f"See the versions: select * from tensile_training_info('{model}');" or (
        refusal.hint == f"See its versions: select * from tensile_training_info('{model}');"
    )


@pytest.mark.parametrize(
    "call", ["tensile_deploy(%s, 1)", "tensile_rollback(%s)", "tensile_rename_model(%s, 'stolen')"]
)
def test_only_the_owner_and_administrators_change_a_model(
    database: Database, alice: Connection, bob: Connection, model: str, call: str
) -> None:
    assert refused(bob, f"select {call}", model).message == f'there is no model "{model}"'
    alice.execute("select tensile_deploy(%s, 2)", (model,))
    alice.execute("select tensile_grant_model(%s, 'bob')", (model,))
    refusal = refused(bob, f"select {call}", model)
    assert (refusal.sqlstate, refusal.message) == ("42501", f'model "{model}" belongs to another role')
    assert refusal.detail == 'Role "bob" may predict with the model, and may not change it.'
    assert history(bob, model) == []
    assert deployed(bob, model) == 2
    with database.connect("admin") as administrator:
        administrator.execute(f"select {call}".encode(), (model,))
        assert value(administrator, "select deployed_by from tensile.deployments order by deployment_id desc limit 1")
        administrator.execute("update tensile.models set name = %s where name = 'stolen'", (model,))


def test_a_renamed_model_keeps_versions_grants_and_history(alice: Connection, bob: Connection, model: str) -> None:
    alice.execute("select tensile_grant_model(%s, 'bob')", (model,))
    alice.execute("select tensile_deploy(%s, 1)", (model,))
    alice.execute('update tensile.models set last_spec = \'{"model": "x", "task": "regression"}\'')
    new_name = "it's " + model[:20]

    alice.execute("select tensile_rename_model(%s, %s)", (model, new_name))

    assert deployed(bob, new_name) == 1
    assert len(history(alice, new_name)) == 2
    assert value(alice, "select last_spec ->> 'model' from tensile.models where name = %s", new_name) == new_name
    assert refused(alice, "select tensile_rollback(%s)", model).sqlstate == "42704"


def test_a_wrong_new_name_is_refused(alice: Connection, bob: Connection, model: str) -> None:
    bob.execute("select tensile_create_model('bobs')")
    alice.execute("select tensile_create_model('mine')")
    alice.execute("select tensile_rename_model(%s, %s)", (model, model))
    shown = "the model's new name is "
    cases: list[tuple[str | None, str, str]] = [
        (None, "22023", shown + "null"),
        ("", "22023", shown + '""'),
        ("a\nb", "22023", shown + '"a\\nb"'),
        ("x" * 201, "22023", shown + '"' + "x" * 201 + '"'),
        ("mine", "42710", 'model "mine" already exists'),
        ("bobs", "42501", 'model "bobs" belongs to another role'),
    ]
    assert refused(alice, "select tensile_rollback(%s, repeat('x', 1001))", model).sqlstate == "22023"
    for name, sqlstate, message in cases:
        refusal = refused(alice, "select tensile_rename_model(%s, %s)", model, name)
        assert (refusal.sqlstate, refusal.message) == (sqlstate, message)
        assert refusal.hint


def test_a_model_in_training_is_not_renamed(alice: Connection, model: str) -> None:
    job = value(alice, "select tensile_train(%s, 'iris', target => 'species', exclude => '{label_known}')", model)
    refusal = refused(alice, "select tensile_rename_model(%s, 'other')", model)
    assert refusal == Refused(
        "55006",
        f'model "{model}" is being trained by job {job}',
        "The training publishes its version to the model of this name.",
        f"Wait until it has ended: select tensile_wait({job}); or cancel it: select tensile_cancel({job});",
    )
    alice.execute("select tensile_deploy(%s, 1)", (model,))  # a deployment waits for no training
    alice.execute("select tensile_cancel(%s)", (job,))


def test_the_versions_are_listed_with_data_and_settings(alice: Connection, model: str) -> None:
    row = alice.execute(
        "select version, deployed, hyperparams, features, rows, split, settings"
        "  from tensile_training_info(%s) limit 1",
        (model,),
    ).fetchone()
    assert row == (5, False, {"epochs": 3}, ["a", "b"], 60, {"seed": 1}, {"best_epoch": 2})


def test_two_deployments_of_one_model_take_turns(database: Database, alice: Connection, model: str) -> None:
    alice.execute("set lock_timeout = '10ms'")
    with database.connect("alice") as first, first.transaction():
        first.execute("select tensile_deploy(%s, 1)", (model,))
        with pytest.raises(psycopg.errors.LockNotAvailable):
            alice.execute("select tensile_deploy(%s, 2)", (model,))
    assert deployed(alice, model) == 1


def test_a_version_that_is_deleted_meanwhile_is_not_deployed(
    database: Database, alice: Connection, model: str
) -> None:
    with database.connect() as admin, ThreadPoolExecutor(1) as thread:
        with admin.transaction():
            admin.execute("delete from tensile.model_versions where number = 1")
            refusal = thread.submit(refused, alice, "select tensile_deploy(%s, 1)", model)
            with database.connect() as observer:
                wait_until(lambda: value(observer, WAITING) == 1)
        assert refusal.result().message == f'model "{model}" has no version 1'
    assert deployed(alice, model) == 3


def test_the_history_of_a_model_has_a_bound(admin: Connection, alice: Connection, model: str) -> None:
    admin.execute(
        f"""do $$ begin
             for turn in 1 .. 1050 loop
               update tensile.model_versions as v set deployed = not deployed
                 from tensile.models as m where m.model_id = v.model_id and v.number = 3 and m.name = '{model}';
             end loop;
           end $$""".encode()
    )
    count = (
        "select count(*) from tensile.deployments as d join tensile.models as m using (model_id) where m.name = %s"
    )
    assert 0 < value(admin, count, model) <= 1001
