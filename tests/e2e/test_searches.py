"""Check with a real controller that searches try values, compare trials, and end with the best version."""

import json
import os
import signal
from collections.abc import Iterator

import psycopg
import pytest

from tests.e2e.conftest import Service
from tests.e2e.trainings import child_pids, weights

pytestmark = pytest.mark.postgres

SPACE = {
    "learning_rate": {"range": [1e-4, 3e-2], "log": True},
    "weight_decay": {"choices": [0.0, 0.01]},
    "epochs": 9,
    "batch_size": 128,
}


@pytest.fixture
def demo(running: Service) -> Iterator[psycopg.Connection]:
    with running.database.connect("demo") as connection:
        yield connection


def search(demo: psycopg.Connection, model: str, options: str, table: str = "digits", **hyperparams: object) -> int:
    row = demo.execute(
        f"""select tensile_search(%s, %s::regclass, architecture => '{{"type": "mlp", "hidden": [32]}}',
                                  hyperparams => %s, {options})""".encode(),
        (model, table, json.dumps(SPACE | hyperparams)),
    ).fetchone()
    assert row is not None
    return int(row[0])


def trials(service: Service, number: int) -> list[tuple[object, ...]]:
    """Return what does not depend on the time: the trials with their values, epochs, metrics and fates."""
    return service.connection.execute(
        """select trial, parameters, state, epoch, rung, metric from tensile.stat_trials
            where search_id = %s order by trial""",
        (number,),
    ).fetchall()


def test_a_search_trains_many_trials_briefly_and_few_to_their_end(running: Service, demo: psycopg.Connection) -> None:
    number = search(demo, "searched", "trials => 4, parallel => 2")
    assert running.until_ended(number) == ["succeeded"], running.log.read_text()[-3000:]

    rows = demo.execute("select trial, state, rung, epoch from tensile_trial_info(%s)", (number,)).fetchall()
    # Trials of a second rung are pruned in tests/sql/test_searches.py.
    assert [(state, rung, epoch) for _, state, rung, epoch in rows] == [("succeeded", 3, 9), *[("pruned", 1, 1)] * 3]
    summary = demo.execute(
        """select state::text, trials, begun, active, waiting, failed, trained + pruned, best_trial, version
             from tensile.stat_searches where search_id = %s""",
        (number,),
    ).fetchone()
    assert summary == ("succeeded", 4, 4, 0, 0, 0, 4, rows[0][0], 1)
    assert demo.execute("select deployed from tensile_training_info('searched')").fetchall() == [(True,)]
    retrain = "select last_spec ->> 'deploy', last_spec ? 'search' from tensile.models where name = 'searched'"
    assert running.connection.execute(retrain.encode()).fetchone() == ("if_better", False)


@pytest.mark.nightly
def test_only_a_better_trial_replaces_the_deployed_version(running: Service, demo: psycopg.Connection) -> None:
    first, second = (search(demo, "kept_best", f"trials => 2, search_seed => {seed}") for seed in (1, 1))
    assert running.until_ended(first, second) == ["succeeded"] * 2
    stays = """select v.not_deployed from tensile.model_versions as v join tensile.jobs as j using (version_id)
                where j.job_id = %s"""
    reasons = [running.value(stays, number) for number in (first, second)]
    (reason,) = filter(None, reasons)  # of the search that ended last
    assert "is not better than" in reason
    assert (
        running.value(
            "select count(*) from tensile.deployments join tensile.models using (model_id) where name = 'kept_best'"
        )
        == 1
    )


# The first test of this module prunes by halving.
@pytest.mark.nightly
@pytest.mark.parametrize("prune", ["halving", "none"])
def test_trials_are_pruned_as_requested(running: Service, demo: psycopg.Connection, prune: str) -> None:
    number = search(demo, f"pruned_{prune}", f"trials => 4, parallel => 2, prune => '{prune}'")
    assert running.until_ended(number) == ["succeeded"]
    states = [row[0] for row in demo.execute("select state from tensile_trial_info(%s)", (number,))]
    expected = {"halving": ["succeeded"] + ["pruned"] * 3, "none": ["succeeded"] * 4}
    assert states == expected[prune]


@pytest.mark.nightly
def test_a_grid_of_architectures_shares_one_snapshot_and_survives_a_trial_that_fails(
    running: Service, demo: psycopg.Connection
) -> None:
    demo.execute("create view some_digits as select * from digits limit 600")
    row = demo.execute(
        """select tensile_search('gridded', 'some_digits', architecture => '{"choices": [
             {"type": "linear"}, {"type": "boosting", "iterations": {"choices": [2, 5]}},
             {"type": "mlp", "hidden": [{"choices": [8, 16]}]}, {"type": "cnn", "kernel": 31, "depth": 16}]}',
             hyperparams => '{"epochs": 3, "batch_size": 32}', sampler => 'grid')"""
    ).fetchone()
    assert row is not None
    assert running.until_ended(row[0]) == ["succeeded"], running.log.read_text()[-3000:]
    trials = demo.execute(
        """select state, coalesce(parameters #>> '{architecture,type}', parameters ->> 'architecture'), count(*)::int
             from tensile_trial_info(%s) group by 1, 2 order by 1, 2""",
        (row[0],),
    ).fetchall()
    failed = [("failed", "cnn", 1)]
    assert trials[:1] == failed
    assert trials[-2:] == [("succeeded", "boosting", 2), ("succeeded", "linear", 1)]
    assert {kind for _, kind, _ in trials} == {"cnn", "mlp", "boosting", "linear"}
    assert running.value("select count(*) from tensile.trials where search_id = %s", row[0]) == 6
    assert running.value("select count(*) from tensile.snapshots where job_id >= %s", row[0]) <= 1


@pytest.mark.nightly
def test_the_same_trials_and_the_same_best_one_after_every_process_was_killed(service: Service) -> None:
    service.settings["TENSILE_SPARE_TRAINERS"] = "3"
    service.start()
    with service.database.connect("demo") as demo:
        demo.execute("select tensile_load_dataset('breast_cancer')")
        options, table = "trials => 7, parallel => 3", "breast_cancer"
        undisturbed = search(demo, "undisturbed_search", options, table, epochs=27, batch_size=16)
        assert service.until_ended(undisturbed) == ["succeeded"]
        disturbed = search(demo, "disturbed_search", options, table, epochs=27, batch_size=16)
        reached = "select count(*) from tensile.stat_trials where search_id = %s and rung is not null"

        service.until(lambda: service.value(reached, disturbed) >= 1, "the first rung")
        for name in ("tensile search_", "tensile trainer"):
            killed = child_pids(service, name)
            assert killed
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
        service.until(lambda: service.value(reached, disturbed) >= 3, "the third rung")
        service.kill()
        service.start()
        assert service.until_ended(disturbed) == ["succeeded"]

        assert trials(service, disturbed) == trials(service, undisturbed)
        best = "select version_id from tensile.jobs where job_id = %s"
        jobs = [
            service.value(
                "select job_id from tensile.model_versions where version_id = %s", service.value(best, number)
            )
            for number in (undisturbed, disturbed)
        ]
        assert weights(service, jobs[0]) == weights(service, jobs[1])


def test_pausing_resuming_and_cancelling_a_search_does_the_same_to_its_trials(
    running: Service, demo: psycopg.Connection
) -> None:
    number = search(demo, "stopped_search", "trials => 8, parallel => 2", epochs=2000)
    active = "select count(*) from tensile.stat_trials where search_id = %s and state = 'running'"
    running.until(lambda: running.value(active, number) == 2, "two trials to train")
    demo.execute("select tensile_pause(%s)", (number,))
    # A trial that has reached its rung meanwhile does not train either.
    trains = "count(*) filter (where state = 'running' and phase is distinct from 'paused')"
    of_search = "from tensile.jobs where search_id = %s and finished_at is null"
    paused = f"select {trains} = 0 and bool_and(pause_requested) {of_search}"
    running.until(lambda: running.value(paused, number), "the trials to pause")
    demo.execute("select tensile_resume(%s)", (number,))
    resumed = f"select {trains} > 0 and not bool_or(pause_requested) {of_search}"
    running.until(lambda: running.value(resumed, number), "the trials to resume")
    assert demo.execute("select tensile_cancel(%s)", (number,)).fetchone() == (True,)
    left = "select count(*) from tensile.jobs where search_id = %s and finished_at is null"
    running.until(lambda: running.value(left, number) == 0, "the trials to end")
    assert running.state(number) == "cancelled"
    assert demo.execute(
        "select state::text, version from tensile.stat_searches where search_id = %s", (number,)
    ).fetchall() == [("cancelled", None)]
