"""Check that a user is told of a baseline that is clearly better: by the job's history, and by the next training."""

from typing import Any, cast

import pytest

from indb_tensile.catalog import models
from indb_tensile.catalog.connection import Session
from tests.catalog.enqueue import claim, publication, register
from worker.baseline_warning import warn_if_better

from .conftest import Connection
from .search_progress import OneSession

pytestmark = pytest.mark.postgres

WARNINGS = "select detail from tensile.job_events where kind = 'warning'"
TRAIN = "select tensile_train('flowers', 'iris', target => 'petal')"


@pytest.mark.parametrize(("r2", "warned"), [(0.9, True), (0.51, False)])
def test_the_history_and_the_next_training_tell_of_a_better_baseline(
    alice: Connection, worker: Connection, r2: float, *, warned: bool
) -> None:
    alice.execute(TRAIN)
    bundle: dict[str, Any] = {"columns": ["a"], "outputs": 1}
    version = models.publish_version(worker, claim(worker, register(worker)), publication(bundle=bundle))
    session = cast(Session, OneSession(worker))
    warn_if_better(session, version)  # there is no baseline yet
    models.add_figure(worker, version, "baseline", {"metrics": {"r2": r2}, "test_rows": 200})
    for _ in range(2):  # an action is repeated after an outage
        warn_if_better(session, version)

    advice = "train again with architecture => 'boosting' or architecture => 'tabm'"
    message = f"gradient boosting predicts the held-out rows better: r2 0.9, and this version 0.5; {advice}"
    expected = [({"message": message, "baseline": 0.9},)] if warned else []
    assert alice.execute(WARNINGS).fetchall() == expected
    notices: list[str] = []
    alice.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))
    alice.execute(TRAIN)
    assert any(text == f"job 1: {message}" for text in notices) is warned
