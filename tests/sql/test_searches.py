"""Check searches in SQL: what is refused and what waits, who may do what, and what the steward's steps change."""

from typing import Any, cast

import psycopg
import pytest
from psycopg.types.json import Jsonb

from indb_tensile.catalog import jobs, searches
from indb_tensile.catalog.connection import Session
from indb_tensile.catalog.models import publish_version
from indb_tensile.catalog.searches import RungReport
from indb_tensile.errors import PrivilegeError, RequestError
from indb_tensile.job import ClaimedJob
from tests.catalog.enqueue import claim, publication, register
from tests.conftest import Database
from worker.search_steward import SearchSteward
from worker.searching.search_steps import SearchSteps

from .conftest import Connection, refused, value

pytestmark = pytest.mark.postgres

SPACE = '{"learning_rate": {"range": [1e-4, 1e-1], "log": true}, "epochs": 9}'


@pytest.fixture
def worker(database: Database) -> Any:
    with database.connect("tensile_worker") as connection:
        yield connection


def search(alice: Connection, model: str = "m", more: str = "trials => 4, parallel => 2", space: str = SPACE) -> int:
    return int(value(alice, f"select tensile_search(%s, 'iris', 'species', hyperparams => %s, {more})", model, space))


def step(worker: Connection, number: int) -> None:
    for active in searches.active_searches(worker):
        if active.search == number:
            SearchSteps(active).take(worker, active.running_s)


def report(worker: Connection, claimed: ClaimedJob, rung: int, metric: float, *, complete: bool = False) -> bool:
    """Report a rung as a trainer does. Returns whether the trial may go on at once."""
    rows = RungReport(
        rung=rung, epoch=3**rung, epochs=9, metric_name="accuracy", metric=metric, higher_is_better=True,
        valid_loss=0.5, complete=complete,
    )  # fmt: skip
    return searches.report_rung(worker, claimed, rows).allowed > rung


def hand_back(worker: Connection, claimed: ClaimedJob) -> None:
    jobs.requeue(worker, claimed.job, claimed.claim, "it waits")


def states(connection: Connection, number: int) -> list[tuple[int, str, int | None]]:
    return connection.execute(
        "select trial, state, rung from tensile.stat_trials where search_id = %s order by trial", (number,)
    ).fetchall()


def test_a_search_is_a_job_that_no_worker_claims_and_its_trials_are_jobs_of_its_owner(
    alice: Connection, worker: Connection
) -> None:
    me = register(worker)
    number = search(alice)
    assert jobs.claim_job(worker, me) is None
    waits = "select waits_for from tensile.stat_queue where job_id = %s"
    assert value(alice, waits, number) == "a controller to begin with its trials"
    step(worker, number)
    step(worker, number)
    assert states(alice, number) == [(1, "queued", None), (2, "queued", None)]
    claimed = claim(worker, me)
    assert claimed.spec.model == "m"
    assert claimed.spec.search is None
    assert claimed.spec.deploy == "never"
    assert 1e-4 <= claimed.spec.hyperparams["learning_rate"] <= 1e-1
    rows = alice.execute("select job_id, state::text, search_id from tensile.stat_jobs order by job_id").fetchall()
    assert rows[0] == (number, "running", number)
    assert [row[2] for row in rows] == [number] * 3
    assert value(alice, "select count(*) from tensile.stat_queue where job_id = %s", number) == 0


def test_a_trial_that_can_no_longer_win_ends_while_the_search_goes_on(alice: Connection, worker: Connection) -> None:
    me = register(worker)
    number = search(alice, more="trials => 4, parallel => 4")
    step(worker, number)
    trials = [claim(worker, me) for _ in range(4)]
    report(worker, trials[0], 2, 0.9, complete=True)
    publish_version(worker, trials[0], publication())
    for metric, claimed in zip((0.5, 0.7), trials[1:3], strict=True):
        report(worker, claimed, 0, metric)
        hand_back(worker, claimed)
    step(worker, number)
    assert states(alice, number) == [
        (1, "succeeded", 3), (2, "pruned", 1), (3, "pruned", 1), (4, "starting", None),
    ]  # fmt: skip
    assert value(alice, "select state::text from tensile.stat_searches") == "running"


def test_the_time_that_a_trial_has_worked_is_known_when_it_goes_on(alice: Connection, worker: Connection) -> None:
    me = register(worker)
    step(worker, search(alice, more="trials => 1, parallel => 1"))
    claimed = claim(worker, me)
    assert claimed.worked_s == 0
    first = RungReport(
        rung=0, epoch=1, epochs=9, metric_name="accuracy", metric=0.5, higher_is_better=True, valid_loss=0.5,
        worked_s=12.5,
    )  # fmt: skip
    searches.report_rung(worker, claimed, first)
    jobs.requeue(worker, claimed.job, claimed.claim, "it waits")
    worker.execute("select tensile.allow_rung(search_id, number, 1) from tensile.trials")
    assert claim(worker, me).worked_s == 12.5


def test_a_trial_waits_at_its_rung_until_it_may_go_on_and_the_search_ends_with_the_best(
    alice: Connection, worker: Connection
) -> None:
    me = register(worker)
    number = search(alice, more="trials => 3, parallel => 3")
    step(worker, number)
    trials = [claim(worker, me) for _ in range(3)]
    for metric, claimed in zip((0.5, 0.9, 0.7), trials, strict=True):
        assert not report(worker, claimed, 0, metric)
        assert not report(worker, claimed, 0, 0.1)  # a repetition changes nothing
        hand_back(worker, claimed)
    assert states(alice, number) == [(1, "waiting", 1), (2, "waiting", 1), (3, "waiting", 1)]
    assert jobs.claim_job(worker, me) is None
    waits = f"search {number} to decide whether it trains further"
    assert value(alice, "select distinct waits_for from tensile.stat_queue") == waits

    step(worker, number)
    again = claim(worker, me)
    assert again.job == trials[1].job
    assert jobs.claim_job(worker, me) is None
    assert not report(worker, again, 1, 0.9)
    step(worker, number)
    assert searches.rung_decision(worker, again).allowed == 2
    report(worker, again, 2, 0.95, complete=True)
    step(worker, number)
    assert (
        value(alice, "select state::text from tensile.stat_searches") == "running"
    )  # its version is not published yet
    version = publish_version(worker, again, publication())
    step(worker, number)
    assert states(alice, number) == [(1, "pruned", 1), (2, "succeeded", 3), (3, "pruned", 1)]
    assert value(alice, "select tensile_wait(%s)", number) == "succeeded"
    assert value(alice, "select version_id from tensile.jobs where job_id = %s", number) == version
    assert value(alice, "select deployed from tensile.model_versions") is True
    assert value(alice, "select reason from tensile.deployment_history").startswith(f"best trial of search {number}")
    info = "select trial, state, metric, rung from tensile_trial_info(%s)"
    assert alice.execute(info.encode(), (number,)).fetchall() == [
        (2, "succeeded", 0.95, 3),
        (3, "pruned", 0.7, 1),
        (1, "pruned", 0.5, 1),
    ]


def test_a_trainer_that_is_still_there_is_told_to_go_on_or_to_wait(alice: Connection, worker: Connection) -> None:
    me = register(worker)
    number = search(alice, more="trials => 3, parallel => 3")
    step(worker, number)
    trials = [claim(worker, me) for _ in range(3)]
    for metric, claimed in zip((0.9, 0.5, 0.7), trials, strict=True):
        report(worker, claimed, 0, metric)
    step(worker, number)
    decisions = [searches.rung_decision(worker, claimed) for claimed in trials]
    assert [(own.allowed, own.held) for own in decisions] == [(1, -1), (0, 0), (0, 0)]


def test_a_trial_whose_worker_died_after_its_rung_waits_and_before_it_trains_again(
    alice: Connection, worker: Connection
) -> None:
    me = register(worker)
    number = search(alice)
    step(worker, number)
    first, second = claim(worker, me), claim(worker, me)
    report(worker, first, 0, 0.5)
    jobs.leave(worker, me)
    assert set(jobs.rescue(worker)) == {first.job, second.job}
    assert states(alice, number) == [(1, "waiting", 1), (2, "queued", None)]


def test_what_its_owner_does_to_a_search_its_trials_do_too(alice: Connection, worker: Connection) -> None:
    me = register(worker)
    number = search(alice)
    step(worker, number)
    active = claim(worker, me)
    alice.execute("select tensile_pause(%s)", (number,))
    alice.execute("select tensile_set_priority(%s, 7)", (number,))
    rows = "select distinct pause_requested, priority from tensile.jobs"
    assert alice.execute(rows.encode()).fetchall() == [(True, 7)]
    assert searches.active_searches(worker) == ()
    alice.execute("select tensile_resume(%s)", (number,))
    assert alice.execute(rows.encode()).fetchall() == [(False, 7)]
    assert value(alice, "select tensile_cancel(%s)", number) is True
    assert jobs.beat(worker, me).cancelled == (active.job,)
    assert [state for _, state, _ in states(alice, number)] == ["starting", "cancelled"]
    step(worker, number)
    again = value(alice, "select tensile_retry(%s)", number)
    stored = (
        "select spec #> '{search,space,hyperparams}', spec #> '{search,prune}' from tensile.jobs where job_id = %s"
    )
    first, second = (alice.execute(stored.encode(), (job,)).fetchone() for job in (number, again))
    assert first == second


def test_a_search_of_failing_trials_fails_with_the_first_error(alice: Connection, worker: Connection) -> None:
    me = register(worker)
    number = search(alice, more="trials => 2")
    step(worker, number)
    for _ in range(2):
        claimed = claim(worker, me)
        jobs.fail(worker, claimed.job, claimed.claim, RequestError("the column is empty"))
    steward = SearchSteward(cast(Session, OneSession(worker)))
    steward.attend()
    row = alice.execute(
        "select error_message, error_detail from tensile.stat_jobs where job_id = %s", (number,)
    ).fetchone()
    assert row == (
        f"none of the 2 trials of search {number} was trained to an end that can be compared",
        "Trial 1: the column is empty.",
    )


def test_a_role_that_may_no_longer_train_gets_no_further_trial(
    database: Database, alice: Connection, worker: Connection
) -> None:
    number = search(alice)
    with database.connect("postgres") as admin:
        admin.execute("create role leaver")
        admin.execute("update tensile.jobs set owner_oid = 'leaver'::regrole, owner_name = 'leaver'")
        try:
            with pytest.raises(PrivilegeError, match='role "leaver" may no longer train'):
                step(worker, number)
        finally:
            admin.execute("drop role leaver")


def test_one_users_locks_delay_no_other_search(database: Database, alice: Connection, worker: Connection) -> None:
    mine = search(alice)
    with database.connect("bob") as bob:
        bob.execute(
            "create table flowers as select * from (values (1, 2.0, 'a'), (2, 3.0, 'b')) as v (id, x, species)"
        )
        bob.execute("insert into flowers select i, i, chr(97 + i % 2) from generate_series(3, 60) as i")
        bob.execute("grant select on flowers to tensile_reader")
        own = int(value(bob, "select tensile_search('b', 'flowers', 'species', hyperparams => %s)", SPACE))
        with bob.transaction():
            bob.execute("select from tensile.jobs where job_id = %s for update", (own,))
            for number in (own, mine):  # a wait for the lock would never end
                step(worker, number)
            assert len(states(alice, mine)) == 2
            assert states(bob, own) == []
        step(worker, own)
        assert len(states(bob, own)) == 4
        assert states(alice, own) == []
        assert refused(alice, "select tensile_trial_info(%s)", own).message == f"there is no job {own}"
        assert refused(bob, "insert into tensile.trials select * from tensile.trials").sqlstate == "42501"
        assert (
            refused(bob, f"select tensile.add_trial({own}, 9, '{{}}', '{{}}', '{{1}}', '{{}}')").sqlstate == "42501"
        )


def test_a_full_queue_delays_trials_and_ends_nothing(
    database: Database, alice: Connection, worker: Connection
) -> None:
    number = search(alice, more="trials => 6, parallel => 6")
    with database.connect("postgres") as admin:
        admin.execute("select tensile_set_quota('alice', jobs_queued => 3)")
        step(worker, number)
        assert len(states(alice, number)) == 2
        admin.execute("select tensile_set_quota('alice')")
    step(worker, number)
    assert len(states(alice, number)) == 6


def test_a_search_ends_soon_after_its_time_is_over(alice: Connection, worker: Connection) -> None:
    me = register(worker)
    number = search(alice, more="trials => 9, parallel => 2, max_duration => '1 s'")
    step(worker, number)
    trials = [claim(worker, me) for _ in range(2)]
    worker.execute("update tensile.jobs set started_at = now() - interval '1 hour' where job_id = %s", (number,))
    report(worker, trials[0], 0, 0.5)
    hand_back(worker, trials[0])
    step(worker, number)
    assert states(alice, number) == [(1, "waiting", 1), (2, "starting", None)]
    report(worker, trials[1], 0, 0.9)
    hand_back(worker, trials[1])
    step(worker, number)
    assert states(alice, number) == [(1, "waiting", 1), (2, "queued", 1)]  # one trial is trained to its end


def test_trials_that_no_worker_has_begun_are_given_up_when_the_time_is_over(
    alice: Connection, worker: Connection
) -> None:
    number = search(alice, more="trials => 3, parallel => 3, max_duration => '1 s'")
    step(worker, number)
    worker.execute("update tensile.jobs set started_at = now() - interval '1 hour' where job_id = %s", (number,))
    SearchSteward(cast(Session, OneSession(worker))).attend()
    assert {state for _, state, _ in states(alice, number)} == {"pruned"}
    assert value(alice, "select state::text from tensile.stat_searches") == "failed"


def test_a_search_waits_for_the_jobs_that_it_depends_on(alice: Connection, worker: Connection) -> None:
    me = register(worker)
    first = int(value(alice, "select tensile_train('first', 'iris', 'species')"))
    number = search(alice, more=f"depends_on => array[{first}]")
    assert searches.active_searches(worker) == ()
    assert (
        value(alice, "select waits_for from tensile.stat_queue where job_id = %s", number)
        == f"job {first} to succeed"
    )
    publish_version(worker, claim(worker, me), publication())
    assert [active.search for active in searches.active_searches(worker)] == [number]
    assert jobs.claim_job(worker, me) is None
    jobs.settle_dependents(worker)
    assert jobs.claim_job(worker, me) is None


@pytest.mark.shares_database
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("trials => 0", 'search: "trials" is 0'),
        ("parallel => 0", 'search: "parallel" is 0'),
        ("sampler => 'x'", 'search: "sampler" is "x"'),
        ("prune => 'x'", 'unknown prune "x"'),
        ('prune => \'{"type": "asha", "factor": 99}\'', 'prune asha: "factor" is 99'),
        ("prune => '{'", "prune is not valid JSON"),
        ("search_seed => -1", 'search: "search_seed" is -1'),
        ("max_duration => '0 s'", 'search: "max_duration_s" is 0'),
        ("sampler => 'grid'", "the values of learning_rate are not countable"),
        ('architecture => \'{"choices": [{"type": "mlp"}, null]}\'', "architecture is null"),
        ("split => '{\"valid_size\": 0}'", "a search compares its trials on validation rows"),
        ('architecture => \'{"choices": [{"type": "mlp"}, {"type": "no"}]}\'', 'unknown architecture "no"'),
        (
            'architecture => \'{"type": "mlp", "dropout": {"range": [0.5, 1.5]}}\'',
            'architecture mlp: "dropout" is 1.5',
        ),
        ('preprocess => \'{"scale": {"choices": ["standard", "no"]}}\'', "preprocess"),
        ("metric => 'r2'", "metric"),
    ],
)
def test_wrong_arguments_are_refused_when_the_search_is_enqueued(
    alice: Connection, arguments: str, message: str
) -> None:
    statement = f"select tensile_search('m', 'iris', 'species', hyperparams => '{SPACE}', {arguments})"
    refusal = refused(alice, statement)
    assert refusal.sqlstate == "22023"
    assert message in refusal.message
    assert refusal.hint


def test_every_choice_of_a_hyper_parameter_is_checked(alice: Connection) -> None:
    space = '{"batch_size": {"choices": [16, 32, 0]}}'
    assert refused(alice, "select tensile_search('m', 'iris', 'species', hyperparams => %s)", space).message == (
        'hyperparams: "batch_size" is 0'
    )
    space = '{"mixup": {"choices": [null, 0.2]}}'
    assert refused(alice, "select tensile_search('m', 'iris', 'species', hyperparams => %s)", space).message == (
        'hyperparams: "mixup" is 0.2, and the features are 0 images and 4 other columns'
    )
    space = '{"learning_rate": 0.1, "weight_decay": 0.1}'
    fixed = "select tensile_search('m', 'iris', 'species', 'classification', 'mlp', %s)"
    assert refused(alice, fixed, space).message == "nothing varies in this search"
    assert refused(alice, "select tensile_trial_info(999999)").sqlstate == "42704"


def test_a_forged_search_is_refused_or_fails_and_harms_nobody(alice: Connection, worker: Connection) -> None:
    good = search(alice)
    spec = value(alice, "select spec from tensile.jobs where job_id = %s", good)
    forge = """insert into tensile.jobs (model_name, relation_oid, relation_schema, relation_name, spec)
               select model_name, relation_oid, relation_schema, relation_name, %s
                 from tensile.jobs where job_id = %s"""
    refusals: list[Any] = [
        {}, {"space": {}}, {"space": {}, "trials": "x"}, {"space": {}, "trials": 0}, {"space": {}, "trials": 1.5},
        {"space": [], "trials": 3}, {"space": {}, "trials": 99999999999}, 7,
        *({"space": {}, "trials": 3, "max_duration_s": own} for own in ("abc", "-Infinity", 0)),
    ]  # fmt: skip
    for own in refusals:
        assert refused(alice, forge, Jsonb(spec | {"search": own}), good).sqlstate == "22023", own
    accepted: list[Any] = [
        {"space": {"spec": 1}, "trials": 3},
        {"space": {"hyperparams": "abc"}, "trials": 3},
        {"space": {"hyperparams": {"seed": {"choices": list(range(3000))}}}, "trials": 3, "sampler": "grid"},
        {"space": {"hyperparams": {"seed": {"range": [0, 1], "step": 1e-320}}}, "trials": 3, "sampler": "grid"},
        {"space": {"architecture": {"choices": [{"type": "mlp"}, None]}}, "trials": 3, "search_seed": -1},
    ]
    for own in accepted:
        alice.execute(forge.encode(), (Jsonb(spec | {"search": own}), good))
    SearchSteward(cast(Session, OneSession(worker))).attend()
    rows = alice.execute("select state::text from tensile.jobs where search_id = job_id order by job_id").fetchall()
    assert [row[0] for row in rows] == ["queued", *["failed"] * len(accepted)]
    assert len(states(alice, good)) == 2
    assert value(alice, "select count(*) from tensile.stat_searches") == len(accepted) + 1
    forged = value(alice, "select max(job_id) from tensile.jobs where search_id = job_id")
    assert refused(alice, "select tensile_retry(%s)", forged).sqlstate != "XX000"


def test_a_worker_cannot_add_a_trial_that_is_another_training(alice: Connection, worker: Connection) -> None:
    number = search(alice)
    spec = value(alice, "select spec from tensile.jobs where job_id = %s", number)
    for change in ({"relation": spec["relation"] | {"oid": 1}}, {"deploy": "always"}, {"query": "select 1"}):
        own = {name: part for name, part in spec.items() if name != "search"} | {"deploy": "never"} | change
        statement = "select tensile.add_trial(%s, 1, '{}', '{}', '{1}', %s)"
        assert refused(worker, statement, number, Jsonb(own)).sqlstate == "22023"


def test_a_version_that_its_owner_has_deployed_stays_deployed(alice: Connection, worker: Connection) -> None:
    me = register(worker)
    number = search(alice, more="trials => 1, prune => 'none'")
    step(worker, number)
    claimed = claim(worker, me)
    report(worker, claimed, 0, 0.9, complete=True)
    publish_version(worker, claimed, publication())
    alice.execute("select tensile_deploy('m', 1)")
    step(worker, number)
    assert value(alice, "select state::text from tensile.stat_searches") == "succeeded"
    assert value(alice, "select deployed from tensile.model_versions") is True
    assert value(alice, "select count(*) from tensile.deployment_history") == 1


def test_locks_on_a_model_and_its_versions_delay_one_search_only(
    database: Database, alice: Connection, worker: Connection
) -> None:
    me = register(worker)
    first, second = search(alice, "first", "trials => 1, prune => 'none'"), search(alice, "second")
    worker.execute("set lock_timeout = '100ms'")
    steward = SearchSteward(cast(Session, OneSession(worker)))
    with database.connect("alice") as other, other.transaction():
        other.execute("select from tensile.models where name = 'first' for update")
        steward.attend()
        assert (states(alice, first), len(states(alice, second))) == ([], 2)
    steward.attend()
    claimed = next(own for own in (claim(worker, me) for _ in range(5)) if own.spec.model == "first")
    report(worker, claimed, 0, 0.9, complete=True)
    publish_version(worker, claimed, publication())
    with database.connect("alice") as other, other.transaction():
        other.execute("select from tensile.model_versions for update")
        steward.attend()
        assert value(alice, "select state::text from tensile.jobs where job_id = %s", first) == "queued"
    steward.attend()
    assert value(alice, "select state::text from tensile.jobs where job_id = %s", first) == "succeeded"


def test_trials_that_wait_for_their_search_do_not_count_as_queued(
    database: Database, alice: Connection, worker: Connection
) -> None:
    me = register(worker)
    with database.connect("postgres") as admin:
        admin.execute("select tensile_set_quota('alice', jobs_queued => 4)")
    number = search(alice, more="trials => 9, parallel => 3")
    step(worker, number)
    for metric in (0.5, 0.6, 0.7):
        claimed = claim(worker, me)
        report(worker, claimed, 0, metric)
        hand_back(worker, claimed)
    step(worker, number)
    assert [state for _, state, _ in states(alice, number)] == ["waiting", "waiting", "queued", "queued", "queued"]
    assert value(alice, "select jobs_queued from tensile.stat_quotas where role = 'alice'") == 4


def test_a_refusal_by_a_quota_is_shown_with_the_search(
    database: Database, alice: Connection, worker: Connection
) -> None:
    number = search(alice)
    with database.connect("postgres") as admin:
        admin.execute("select tensile_set_quota('alice', jobs_queued => 1)")
        step(worker, number)
        waits = "select waits_for from tensile.stat_searches where search_id = %s"
        assert value(alice, waits, number).startswith('trial 1: role "alice" may have at most 1 jobs in the queue')
        admin.execute("select tensile_set_quota('alice', highest_priority => 5)")
        admin.execute("select tensile_set_priority(%s, 9)", (number,))
    step(worker, number)
    assert value(alice, waits, number) is None
    assert value(alice, "select priority from tensile.jobs where search_id <> job_id limit 1") == 5


def test_the_best_trial_is_one_that_was_published(alice: Connection, worker: Connection) -> None:
    me = register(worker)
    number = search(alice, more="trials => 2, prune => 'none'")
    step(worker, number)
    first, second = claim(worker, me), claim(worker, me)
    report(worker, first, 0, 0.99, complete=True)
    jobs.fail(worker, first.job, first.claim, RequestError("the disk is gone"))
    report(worker, second, 0, 0.5, complete=True)
    publish_version(worker, second, publication())
    step(worker, number)
    best = "select state::text, best_trial, best_metric from tensile.stat_searches"
    assert alice.execute(best.encode()).fetchall() == [("succeeded", 2, 0.5)]


def test_inherited_arguments_of_networks_fit_any_order_of_architectures(
    alice: Connection, worker: Connection
) -> None:
    me = register(worker)
    alice.execute(
        """select tensile_train('m', 'iris', 'species', hyperparams => '{"epochs": 5, "optimizer": "sgd"}',
                                early_stop => '{"patience": 2}')"""
    )
    publish_version(worker, claim(worker, me), publication())
    for kinds in ('["boosting", "mlp"]', '["mlp", "boosting"]'):
        statement = "select tensile_search('m', 'iris', sampler => 'grid', architecture => %s)"
        number = value(alice, statement, f'{{"choices": {kinds}}}')
        step(worker, number)
        specs = "select spec from tensile.jobs where search_id = %s and job_id <> search_id"
        inherited = {spec["architecture"]["type"]: spec for (spec,) in alice.execute(specs.encode(), (number,))}
        assert inherited["mlp"]["hyperparams"] == {"epochs": 5, "optimizer": "sgd"}
        assert inherited["mlp"]["early_stop"]["patience"] == 2
        assert (inherited["boosting"]["hyperparams"], inherited["boosting"]["early_stop"]) == ({}, None)


class OneSession:
    """A session that runs every action on one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def run(self, action: Any, *, wait_for_locks: bool = True) -> Any:
        return action(self._connection)


def test_search_and_explanation_of_several_devices_are_refused(alice: Connection) -> None:
    with pytest.raises(psycopg.Error, match="devices is 2, and each trial of a search trains on one device"):
        search(alice, more="trials => 4, devices => 2")
    with pytest.raises(psycopg.Error, match="devices is 2, and tensile_explain foretells one device"):
        alice.execute("select * from tensile_explain('m', 'iris', 'species', devices => 2)")
    with pytest.raises(psycopg.Error, match='"reduce" is fast, and one device trains'):
        search(alice, space='{"reduce": {"choices": ["exact", "fast"]}}', more="trials => 2")
