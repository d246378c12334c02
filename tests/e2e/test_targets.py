"""Check with a real controller that models of several values and of sets of labels train and predict in every way."""

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Service
from tests.e2e.trainings import check_killed_without_fault, child_pids, wait_until_training, weights

pytestmark = pytest.mark.postgres

TABLE = """
create type temper as enum ('calm', 'loud');
create table persons as
select n as id, sin(n) as a, (array['x', 'y', 'z'])[n % 3 + 1] as b, 10 + 3 * sin(n) as height,
       100 * (n % 3) as weight, array[sin(n), n % 3, 5]::real[] as sizes,
       case when n % 41 = 0 then null else array_remove(array[case when sin(n) > 0 then 'up' end,
         case when n % 3 = 1 then 'a "b"' end, case when n % 3 = 2 then 'c,d' end], null) end as tags,
       case n % 3 when 0 then array['calm', 'loud'] when 1 then array['loud'] else '{}' end::temper[] as moods,
       case n % 3 when 0 then array[10, 2] when 1 then array[10] else '{}' end::int[] as codes,
       sin(n) > 0 as is_up, n % 3 = 1 as is_b
  from generate_series(1, 400) as n;
alter table persons add primary key (id);
grant select on persons to tensile_reader"""
TRAIN = """
select tensile_train(%s, 'persons', %s, features => array['a', 'b'], architecture => %s, hyperparams => %s,
                     task => %s)"""
MODELS = {
    "several": ('["height", "weight"]', "mlp", None),
    "vector": ("sizes", '{"type": "tabm", "members": 2, "hidden": [16]}', None),
    "tags": ("tags", "mlp", None),
    "moods": ("moods", '{"type": "tabm", "members": 2, "hidden": [16]}', None),
    "codes": ("codes", "mlp", None),
    "booleans": ('["is_up", "is_b"]', "mlp", "multilabel"),
}
ENSEMBLES = ("several", "tags")  # of two networks each
DAILY = ("several", "tags")


@pytest.fixture(scope="module")
def demo(running: Service) -> Iterator[psycopg.Connection]:
    with running.database.connect("demo") as connection:
        connection.execute(TABLE.encode())
        train(running, connection, *DAILY)
        yield connection


def train(running: Service, demo: psycopg.Connection, *models: str) -> None:
    options = {"epochs": 40, "batch_size": 64, "learning_rate": 0.02}
    jobs = []
    for model in models:
        target, architecture, task = MODELS[model]
        weighed = {"class_weight": "balanced"} if model == "moods" else {}
        own = json.dumps(options | weighed | {"ensemble": 2 if model in ENSEMBLES else 1})
        row = demo.execute(TRAIN.encode(), (model, target, architecture, own, task)).fetchone()
        assert row is not None
        jobs.append(row[0])
    assert running.until_ended(*jobs) == ["succeeded"] * len(jobs), running.value(
        "select string_agg(error, ' ') from tensile.jobs"
    )


def rows(demo: psycopg.Connection, statement: str, *arguments: object) -> list[Any]:
    return demo.execute(statement.encode(), arguments).fetchall()


@pytest.mark.nightly
def test_models_of_several_values_predict_alike_in_every_way(running: Service, demo: psycopg.Connection) -> None:
    train(running, demo, "vector")
    metrics = dict(rows(demo, "select * from tensile_evaluate('several')"))
    assert metrics["r2"] == pytest.approx((metrics["r2(height)"] + metrics["r2(weight)"]) / 2)
    assert metrics["r2"] > 0.9
    assert dict(rows(demo, "select * from tensile_evaluate('several', 'persons')"))["rmse(height)"] < 1.5
    for model in ("several", "vector"):
        single = [
            row[0]
            for row in rows(
                demo, f"select tensile_predict_values('{model}', p) from persons as p where id <= 50 order by id"
            )
        ]
        predicted = f"select value, label, targets from tensile_predict_table('{model}', 'persons')"
        table = rows(demo, f"{predicted} order by (key ->> 'id')::int")
        assert all((value, label) == (None, None) for value, label, _ in table)
        listed = [list(own.values()) if isinstance(own, dict) else own for *_, own in table]
        assert len(listed) == 400
        for first, other in zip(single, listed[:50], strict=True):
            assert first == pytest.approx(other, rel=1e-5, abs=1e-3)
    assert list(table[0][2]) == table[0][2], "a vector is a list"
    batch = rows(demo, "select tensile_predict_batch_values('vector', array_agg(p order by id)) from persons as p")[
        0
    ][0]
    assert batch[0] == pytest.approx(single[0], abs=1e-3)
    with pytest.raises(
        psycopg.errors.InvalidParameterValue, match=r'predicts \["height", "weight"\], 2 values'
    ) as caught:
        rows(demo, "select tensile_predict('several', p) from persons as p where id = 1")
    assert caught.value.diag.message_hint == "Ask for them with tensile_predict_values(...)."
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="has no labels"):
        rows(demo, "select tensile_predict_label('several', p) from persons as p where id = 1")


@pytest.mark.nightly
def test_models_of_label_sets_predict_alike_in_every_way(running: Service, demo: psycopg.Connection) -> None:
    assert dict(rows(demo, "select * from tensile_evaluate('tags')"))["f1_micro"] > 0.9
    right = """select count(*) from persons as p
                where id <= 50 and tags is not null and tensile_predict_labels('tags', p) <@ tags"""
    assert rows(demo, right)[0][0] > 43
    check_labels(demo, "tags", 'a "b"')
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="a set of labels and not a number"):
        rows(demo, "select tensile_predict('tags', p) from persons as p where id = 1")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="and label is left out") as caught:
        rows(demo, "select * from tensile_confusion_matrix('tags')")
    assert caught.value.diag.message_hint == "Name one of a \"b\", c,d, up with label => '...'."
    into = [
        rows(demo, f"select tensile_predict_into('{model}', 'persons', '{model}_out')")[0][0]
        for model in ("tags", "several")
    ]
    assert running.until_ended(*into) == ["succeeded"] * 2
    equal = """select count(*) from tags_out join persons as p using (id)
                where id <= 50 and label = tensile_predict_label('tags', p)"""
    assert rows(demo, equal) == [(50,)]
    assert rows(demo, "select count(distinct (targets ->> 'height')::float8) > 300 from several_out") == [(True,)]


def check_labels(demo: psycopg.Connection, model: str, label: str) -> None:
    """Compare the sets of labels of every function, and check that some row probably does not have this label."""
    compared = """
        select count(*) filter (where t.label::text[] = tensile_predict_labels(%s, p)
                                  and t.label = tensile_predict_label(%s, p)), min((t.probabilities ->> %s)::float8)
          from tensile_predict_table(%s, 'persons', with_probabilities => true) as t
          join persons as p on p.id = (t.key ->> 'id')::int where p.id <= 50"""
    same, least = rows(demo, compared, model, model, label, model)[0]
    assert (same, least < 0.2) == (50, True), model


@pytest.mark.nightly
def test_labels_may_be_of_an_enum_numbers_or_columns(running: Service, demo: psycopg.Connection) -> None:
    train(running, demo, "moods", "codes", "booleans")
    for model, label in (("moods", "calm"), ("codes", "10"), ("booleans", "is_b")):
        check_labels(demo, model, label)
    chances = dict(rows(demo, "select p.* from persons, tensile_predict_proba('codes', persons) as p where id = 3"))
    assert (min(chances.values()) > 0.8, set(chances)) == (True, {"2", "10"})


def test_every_label_and_value_has_figures_of_its_own(demo: psycopg.Connection) -> None:
    held_out = """select sum(rows), sum(rows) filter (where actual = 'true')
                    from tensile_confusion_matrix('tags', label => 'up')"""
    ((whole, ups),) = rows(demo, held_out)
    stored = rows(demo, "select name, rows, value from tensile_label_metrics('tags') where metric = 'f1' order by 1")
    assert [name for name, *_ in stored] == ['a "b"', "c,d", "up"]
    assert (stored[2][1], min(value for *_, value in stored) > 0.8) == (ups, True)
    assert rows(demo, "select sum(rows) from tensile_calibration('tags')") == [(3 * whole,)]
    assert rows(demo, "select sum(rows) from tensile_calibration('tags', label => 'up')") == [(whole,)]
    assert rows(demo, "select distinct class from tensile_roc_curve('tags') order by 1") == [
        ('a "b"',),
        ("c,d",),
        ("up",),
    ]
    of_table = """select actual, predicted, rows from tensile_confusion_matrix('tags', 'persons', label => 'up')
                   order by 1, 2"""
    by_hand = """select ('up' = any (tags))::text, ('up' = any (tensile_predict_labels('tags', p)))::text, count(*)
                   from persons as p where tags is not null group by 1, 2 order by 1, 2"""
    assert rows(demo, of_table) == rows(demo, by_hand)
    own = rows(demo, "select metric, value from tensile_label_metrics('several', 'persons', label => 'weight')")
    every = dict(rows(demo, "select * from tensile_evaluate('several', 'persons')"))
    assert own == [(metric, pytest.approx(every[f"{metric}(weight)"])) for metric, _ in own]
    important = "select feature, metric from tensile_feature_importance(%s, 'persons', label => %s) limit 1"
    assert rows(demo, important, "several", "weight") == [("b", "r2(weight)")]
    assert rows(demo, important, "tags", "up") == [("a", "f1(up)")]
    with pytest.raises(psycopg.errors.InvalidParameterValue, match='does not know the label "no"') as caught:
        rows(demo, important, "several", "no")
    assert caught.value.diag.message_hint == "Its values are height, weight."
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="as a number, and has no ROC curve"):
        rows(demo, "select * from tensile_roc_curve('several')")


def test_views_functions_triggers_splits_and_explanations_know_several_targets(demo: psycopg.Connection) -> None:
    for model in ("several", "tags"):
        rows(demo, f"select tensile_create_predict_view('{model}', 'persons', 'v_{model}')")
        rows(demo, f"select tensile_create_predict_function('{model}', 'persons', 'f_{model}')")
    view = "select predicted_targets = f_several(a, b), cardinality(predicted_targets) from v_several where id = 7"
    assert rows(demo, view) == [(True, 2)]
    assert rows(demo, "select predicted_tags = f_tags(a, b) from v_tags where id = 7") == [(True,)]
    demo.execute("create table noted (a float8, b text, guess text[], numbers float8[])")
    for model, column in (("tags", "guess"), ("several", "numbers")):
        rows(demo, f"select tensile_create_predict_trigger('{model}', 'noted', '{column}')")
    stored = "insert into noted (a, b) values (0.5, 'y') returning guess = f_tags(a, b), numbers = f_several(a, b)"
    assert rows(demo, stored) == [(True, True)]
    parts = rows(demo, "select part, count(*) from tensile_split('tags') group by 1 order by 1")
    assert sum(count for part, count in parts if part is None) == 400 // 41
    share = """select sum(attribution), max(prediction) - max(baseline), max(class)
                 from persons, tensile_explain_prediction(%s, persons, label => %s) where id = 8"""
    for model, label in (("several", "weight"), ("tags", "up")):
        total, difference, named = rows(demo, share, model, label)[0]
        assert (total, named) == (pytest.approx(difference, abs=1e-4), label)
    assert rows(demo, "select count(*) from tensile_feature_importance('tags')") == [(2,)]


@pytest.mark.nightly
@pytest.mark.parametrize("target", ["tags", '["height", "weight"]'])
def test_a_training_for_several_targets_survives_a_kill_bit_for_bit(
    running: Service, demo: psycopg.Connection, target: str
) -> None:
    options = json.dumps({"epochs": 300, "batch_size": 64, "ensemble": 2})
    first, second = (
        rows(demo, TRAIN, f"{name} {target}", target, '{"type": "mlp", "hidden": [512, 512]}', options, None)[0][0]
        for name in ("undisturbed", "killed")
    )
    wait_until_training(running, second)
    for trainer in child_pids(running, "tensile trainer"):
        os.kill(trainer, signal.SIGKILL)
    assert running.until_ended(first, second) == ["succeeded"] * 2
    assert weights(running, first) == weights(running, second)
    check_killed_without_fault(running, second)
