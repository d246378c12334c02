"""Check what a second training inherits from the first, and when its version is deployed."""

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Service

pytestmark = pytest.mark.postgres

TABLES = """
create table words as
  select i as id, (i % 7)::real as a, (i % 5)::real as b, case when i % 7 < 3 then 'low' else 'high' end as y
    from generate_series(1, 200) as i;
create table numbers as
  select i as id, (i % 7)::real as a, (i % 5)::real as b, i * 0.37::float8 as y from generate_series(1, 200) as i;
create table more_words as select id, a, b, case when a = 6 then 'top' else y end as y from words;
create table rare as
  select i as id, (i % 7)::real as a, case when i in (3, 4, 5, 6) then 'rare' else 'usual' end as y
    from generate_series(1, 80) as i;
grant select on words, numbers, more_words, rare to tensile_reader"""


@pytest.fixture(scope="module")
def service(running: Service) -> Service:
    """The session's controller, and the tables to train on."""
    with running.database.connect("demo") as connection:
        connection.execute(TABLES)
    return running


@pytest.fixture
def demo(service: Service) -> Iterator[psycopg.Connection[Any]]:
    """A session of an ordinary user."""
    with service.database.connect("demo") as connection:
        yield connection


def train(demo: psycopg.Connection[Any], service: Service, model: str, table: str, options: str = "") -> int:
    """Train, wait until the job has succeeded, and return its id."""
    arguments = f"'y', exclude => array['id'], hyperparams => '{{\"epochs\": 8, \"batch_size\": 16}}'{options}"
    row = demo.execute(f"select tensile_train('{model}', '{table}', {arguments})".encode()).fetchone()
    assert row is not None
    assert service.until_ended(row[0]) == ["succeeded"]
    return int(row[0])


@pytest.mark.nightly
def test_changed_target_gets_its_own_task_and_replaces_no_deployed_version(
    service: Service, demo: psycopg.Connection[Any]
) -> None:
    notices: list[str] = []
    demo.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))
    first = train(demo, service, "chg", "words")
    notices.clear()

    second = train(demo, service, "chg", "numbers")
    train(demo, service, "chg", "more_words")

    rows = demo.execute(
        "select version, task::text, deployed, not_deployed from tensile_training_info('chg')"
        " join tensile.stat_jobs using (version) where model = 'chg' order by version"
    ).fetchall()
    reason_start = "it cannot be compared with version 1, which stays deployed: that version "
    assert rows == [
        (1, "classification", True, None),
        (2, "regression", False, reason_start + 'predicts "y" by classification, this one by regression'),
        (3, "classification", False, reason_start + "knows 2 classes and this one 3, of which 2 are the same"),
    ]
    assert [text for text in notices if not text.startswith("features that")] == [
        f'task "classification" of job {first} is not taken over, as target "y" has type double precision and had '
        "values of kind text then",
        'task is regression, as target "y" has type double precision',
        f'task "regression" of job {second} is not taken over, as target "y" has type text and had values of kind '
        "float then",
        'task is classification, as target "y" has type text',
    ]


@pytest.mark.nightly
def test_version_with_deploy_always_is_deployed_without_a_comparison(
    service: Service, demo: psycopg.Connection[Any]
) -> None:
    train(demo, service, "always", "words")
    train(demo, service, "always", "numbers", ", deploy => 'always'")

    rows = demo.execute("select version, task::text from tensile_training_info('always') where deployed").fetchall()
    assert rows == [(2, "regression")]


@pytest.mark.nightly
def test_undefined_validation_metric_does_not_stop_the_training(
    service: Service, demo: psycopg.Connection[Any]
) -> None:
    options = """, split => '{"valid_size": 0.05}', early_stop => '{"metric": "roc_auc", "patience": 1}'"""
    job = train(demo, service, "rare", "rare", options)

    epochs = demo.execute("select max(epoch) from tensile.metrics where job_id = %s", (job,)).fetchone()
    events = demo.execute(
        "select detail ->> 'reason' from tensile.job_events where job_id = %s and kind = 'metric_undefined'", (job,)
    ).fetchall()
    assert epochs == (8,)
    ((reason,),) = events
    assert re.fullmatch(
        r"roc_auc is not defined on the \d+ validation rows, so early stopping does not apply, and the last epoch is "
        "published",
        reason,
    )


@pytest.mark.nightly
def test_versions_with_more_than_two_classes_are_compared_by_roc_auc(
    service: Service, demo: psycopg.Connection[Any]
) -> None:
    train(demo, service, "auc", "more_words", ", metric => 'roc_auc'")
    train(demo, service, "auc", "more_words", ", metric => 'roc_auc'")

    rows = demo.execute(
        "select version, metric_name, metric between 0 and 1, not_deployed from tensile.stat_jobs where model = 'auc'"
        " order by version"
    ).fetchall()
    assert rows[0] == (1, "roc_auc", True, None)
    assert rows[1][:3] == (2, "roc_auc", True)
    assert "is not better than the" in rows[1][3], "equal seeds give equal versions"
