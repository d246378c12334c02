"""Check with a real controller that a model reads texts as tokens, and predicts by every function alike."""

import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Service
from tests.e2e.trainings import check_killed_without_fault, child_pids, weights

pytestmark = pytest.mark.postgres

TABLE = """
create table if not exists notes as
select n as id, case when n % 13 = 0 then null
                     when n % 5 = 0 then case when n % 2 = 0 then 'tables' else 'music' end
                     when n % 2 = 0 then 'The server has ' || n % 9 || ' tables with an index.'
                     else 'A player for music, with ' || n % 9 || ' codecs of sound' end as body,
       'note ' || n as title, n % 5 as pages, case when n % 2 = 0 then 'data' else 'sound' end as section
  from generate_series(1, 300) as n;
alter table notes drop constraint if exists notes_pkey, add primary key (id);
grant select on notes to tensile_reader"""
TRAIN = """select tensile_train('sections', 'notes', 'section', preprocess => '{
  "encode": {"body": "tokens", "title": "tokens"}, "vocabulary": {"body": 400}, "length": {"title": 4}}'"""


@pytest.fixture
def demo(running: Service) -> Iterator[psycopg.Connection]:
    with running.database.connect("demo") as connection:
        connection.execute(TABLE.encode())
        yield connection


@pytest.mark.nightly
def test_a_model_of_texts_is_explained_trained_continued_and_predicts_in_every_way(
    running: Service, demo: psycopg.Connection
) -> None:
    def rows(statement: str) -> list[tuple[Any, ...]]:
        return demo.execute(statement.encode()).fetchall()

    arguments = TRAIN + """, hyperparams => '{"epochs": 6, "batch_size": 16, "length_buckets": 3}')"""
    explained = rows(arguments.replace("tensile_train", "policy, note from tensile_explain"))
    assert re.search(r"by a sample .* \"body\" has \d+ tokens in \d+% of batches, .*; 16 tokens in", explained[-1][1])
    job = rows(arguments)[0][0]
    assert running.until_ended(job) == ["succeeded"], running.log.read_text()
    history = "select detail ->> 'message' from tensile.job_events where job_id = %s and kind = 'settings'"
    assert re.search(r'texts of column "body" are padded to \d.* or 16 tokens, \d+% ', running.value(history, job))
    metric, encoder = rows("select metric, architecture ->> 'text_encoder' from tensile_training_info('sections')")[0]
    assert (metric, encoder) == (pytest.approx(1, abs=0.1), "pooling")

    single = rows("select tensile_predict_label('sections', n) from notes as n where id <= 40 order by id")
    whole = rows("select label from tensile_predict_table('sections', 'notes') order by (key ->> 'id')::int")
    assert single == whole[:40]
    document = """select tensile_predict_label('sections', '{"body": "music", "title": "", "pages": 1}'::jsonb)"""
    assert rows(document) == [("sound",)]
    added: dict[str, float] = dict(
        rows(
            """select feature, attribution from tensile_explain_prediction('sections',
                 '{"body": "music", "title": "note", "pages": 1}'::jsonb)"""
        )
    )
    assert set(added) >= {"body", "title", "pages"}

    into, more = (
        rows(call)[0][0]
        for call in (
            "select tensile_predict_into('sections', 'notes', 'sectioned')",
            """select tensile_train('sections', 'notes', init_from => 'sections', hyperparams => '{"epochs": 1}')""",
        )
    )
    assert running.until_ended(into, more) == ["succeeded"] * 2, running.log.read_text()
    assert rows("select label from sectioned order by id") == whole
    assert rows("select count(*) from tensile_training_info('sections')") == [(2,)]
    demo.execute("drop view sectioned")


@pytest.mark.nightly
@pytest.mark.parametrize("buckets", [1, 3])
def test_a_training_on_texts_survives_a_kill_bit_for_bit(
    running: Service, demo: psycopg.Connection, buckets: int
) -> None:
    options = """, architecture => '{"type": "wide_and_deep", "text_encoder": "transformer", "text_width": 32}',
      hyperparams => '{"epochs": 60, "batch_size": 16, "length_buckets": BUCKETS}')""".replace(
        "BUCKETS", str(buckets)
    )
    calm, killed = (
        demo.execute((TRAIN.replace("'sections'", f"'{name}'", 1) + options).encode()).fetchall()[0][0]
        for name in (f"calm_texts_{buckets}", f"killed_texts_{buckets}")
    )
    phase = "select phase::text from tensile.jobs where job_id = %s"
    running.until(lambda: running.value(phase, killed) == "training", "the training to begin")
    for trainer in child_pids(running, "tensile trainer"):
        os.kill(trainer, signal.SIGKILL)
    assert running.until_ended(calm, killed) == ["succeeded"] * 2, running.log.read_text()
    check_killed_without_fault(running, killed)
    assert weights(running, calm) == weights(running, killed)
