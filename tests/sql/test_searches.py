"""Check searches in SQL: what waits, what the steward's steps change, and how a search ends."""

from typing import cast

import pytest

from indb_tensile.catalog import jobs, searches
from indb_tensile.catalog.connection import Session
from indb_tensile.catalog.models import publish_version
from indb_tensile.catalog.searches import RungReport
from indb_tensile.errors import RequestError
from tests.catalog.enqueue import claim, publication, register
from worker.search_steward import SearchSteward

from .conftest import Connection, value
from .search_progress import OneSession, hand_back, report, search, states, step

pytestmark = [pytest.mark.postgres, pytest.mark.clears_database]


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
