"""Check which weights of classes are refused before a job exists."""

import json

import pytest

from .conftest import Connection, refused, value

pytestmark = [pytest.mark.postgres, pytest.mark.shares_database]

_HINT = "Name classes as the table shows them; a class that is left out has the weight 1."


@pytest.fixture
def things(alice: Connection) -> Connection:
    """A session of alice, whose table `things` has targets of several types."""
    if value(alice, "select to_regclass('things') is null"):
        alice.execute(
            """create table things (id int primary key, x float8, code char(4), number int8, share float8,
                                    label text[], numbers int[]);
               insert into things select i, sin(i), case when i % 2 = 0 then 'ab' else 'cd' end, i % 11, i % 3,
                                         case when i % 2 = 0 then array['red', 'new'] else array['new'] end,
                                         case when i % 2 = 0 then array[10, 9] else array[9] end
                                    from generate_series(1, 60) as i;
               grant select on things to tensile_reader"""
        )
    return alice


@pytest.mark.parametrize(
    ("target", "classes", "listed"),
    [
        ("code", ("ab", "cd"), "ab, cd"),
        ("number", ("10", "0"), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10"),
        ("label", ("red", "new"), "new, red"),
        ("numbers", ("10", "9"), "9, 10"),
    ],
)
def test_weight_of_a_class_that_no_row_has_is_refused(
    things: Connection, target: str, classes: tuple[str, str], listed: str
) -> None:
    task = "multilabel" if target in ("label", "numbers") else "classification"
    train = f"select tensile_train('m', 'things', '{target}', '{task}', features => '{{x}}', hyperparams => %s)"
    assert value(things, train, json.dumps({"class_weight": dict.fromkeys(classes, 2)})) > 0
    refusal = refused(things, train, json.dumps({"class_weight": {classes[0]: 2, "blue": 3}}))
    assert refusal.message == (
        f'hyperparams: "class_weight" names "blue", and target "{target}" of table "public.things" has no such class'
    )
    assert (refusal.sqlstate, refusal.detail, refusal.hint) == ("22023", f"The classes are: {listed}.", _HINT)


def test_weights_of_zero_for_all_classes_are_refused(things: Connection) -> None:
    train = "select tensile_train('m', 'things', 'code', 'classification', features => '{x}', hyperparams => %s)"
    refusal = refused(things, train, '{"class_weight": {"ab": 0, "cd": 0.0}}')
    assert refusal.message == (
        'hyperparams: "class_weight" is 0 for each of the 2 classes of target "code" of table "public.things"'
    )
    assert refusal.hint == "Give one class a weight above 0: rows of weight 0 are not learned from."
    assert value(things, train, '{"class_weight": {"ab": 0}}') > 0


def test_classes_of_fractions_are_left_to_the_worker(things: Connection) -> None:
    weights = '{"class_weight": {"1.5": 2}}'
    train = "select tensile_train('m', 'things', 'share', 'classification', features => '{x}', hyperparams => %s)"
    assert value(things, train, weights) > 0


def test_classes_of_a_table_with_more_rows_than_are_looked_at_are_left_to_the_worker(things: Connection) -> None:
    things.execute(
        """create table many as select i as id, i % 3 as x, 'c' || i % 2 as y from generate_series(1, 10000) as i;
           grant select on many to tensile_reader"""
    )
    weights = '{"class_weight": {"c2": 2}}'
    assert value(things, "select tensile_train('m', 'many', 'y', hyperparams => %s)", weights) > 0


def test_every_trial_of_a_search_names_classes_of_the_target(things: Connection) -> None:
    search = "select tensile_search('m', 'things', 'code', 'classification', features => '{x}', hyperparams => %s)"
    space = '{"class_weight": {"choices": [null, {"ab": 2}, {"ef": 2}]}}'
    assert refused(things, search, space).message == (
        'hyperparams: "class_weight" names "ef", and target "code" of table "public.things" has no such class'
    )
    assert value(things, search, space.replace("ef", "cd")) > 0


def test_every_trial_of_a_search_that_normalises_has_batches_of_two_rows(things: Connection) -> None:
    search = """select tensile_search('m', 'things', 'code', 'classification', features => '{x}',
                                      architecture => %s, hyperparams => %s)"""
    space = '{"type": "mlp", "batch_norm": {"choices": [false, true]}}'
    assert refused(things, search, space, '{"batch_size": 1}').message == (
        'hyperparams: "batch_size" is 1, and architecture mlp has batch normalisation'
    )
    assert value(things, search, '{"type": "mlp", "dropout": {"range": [0, 0.5]}}', '{"batch_size": 1}') > 0
