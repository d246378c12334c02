"""Enqueues searches and moves them on as controller and trainers do, in this process."""

from typing import Any

from indb_tensile.catalog import jobs, searches
from indb_tensile.catalog.searches import RungReport
from indb_tensile.job import ClaimedJob
from worker.searching.search_steps import SearchSteps

from .conftest import Connection, value

SPACE = '{"learning_rate": {"range": [1e-4, 1e-1], "log": true}, "epochs": 9}'


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


class OneSession:
    """A session that runs every action on one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def run(self, action: Any, *, wait_for_locks: bool = True) -> Any:
        return action(self._connection)
