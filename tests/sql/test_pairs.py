"""Arguments of a training of pairs are checked when it is enqueued; the target names the columns of the item."""

import json
from typing import Any

import psycopg
import pytest

from .conftest import Connection, value

pytestmark = [pytest.mark.postgres, pytest.mark.shares_database]

TABLE = """
create table baskets as select n as id, n * 1.5 as spent, 'a' || n % 3 as customer, 'p' || n % 5 as product,
       'about ' || n % 5 as about, array[n, 1] as shape, '1 day'::interval as age, point(1, 2) as place
  from generate_series(1, 20) as n;
grant select on baskets to tensile_reader"""


@pytest.fixture
def demo(alice: Connection) -> Connection:
    if value(alice, "select to_regclass('baskets') is null"):
        alice.execute(TABLE.encode())
    return alice


def train(demo: Connection, **arguments: Any) -> dict[str, Any]:
    """Enqueue a training, and return its specification."""
    own = {"task": "pairs", "exclude": ["place", "id"], "target": '["product", "about"]'} | arguments
    own = {name: option for name, option in own.items() if option is not None}
    named = ", ".join(f"{name} => %({name})s" for name in own)
    values = {name: json.dumps(option) if isinstance(option, dict) else option for name, option in own.items()}
    row = demo.execute(f"select tensile_train('m', 'baskets', {named})".encode(), values).fetchone()
    assert row is not None
    return dict(value(demo, "select spec from tensile.jobs where job_id = %s", row[0]))


def test_the_target_is_the_item_and_the_other_columns_are_the_query(demo: Connection) -> None:
    spec = train(demo, preprocess={"encode": {"about": "tokens"}}, architecture='{"type": "two_towers", "width": 8}')
    assert (spec["task"], spec["target"], spec["targets"]) == (
        "pairs",
        '["product", "about"]',
        ["product", "about"],
    )
    assert sorted(spec["column_numbers"]) == ["about", "age", "customer", "product", "shape", "spent"]
    single = train(demo, target="product", features=["customer"], exclude=None, metric="recall_at_10")
    assert (single["target"], single.get("targets"), sorted(single["column_numbers"])) == (
        "product",
        None,
        ["customer", "product"],
    )


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ({"target": None}, "task pairs needs the columns of the item", "The features describe the query"),
        ({"target": "place"}, "has type point, which cannot be learned from", "Supported are"),
        ({"features": ["product"], "exclude": None}, '"product" is both target and feature', "Leave it out"),
        ({"metric": "accuracy"}, 'unknown metric "accuracy" for pairs', "mrr, recall_at_1, recall_at_10"),
        ({"architecture": "tabm"}, "architecture tabm has no side for the item", "auto or two_towers"),
        ({"architecture": "boosting"}, "architecture boosting has no side for the item", "auto or two_towers"),
        ({"architecture": '{"type": "auto", "input_shape": [4]}'}, '"input_shape"', "Leave"),
        ({"architecture": '{"type": "two_towers", "temperature": 0}'}, '"temperature" is 0', "0.01"),
        ({"hyperparams": {"weight": "spent"}}, '"weight" cannot be combined', "all pairs count the same"),
        ({"hyperparams": {"micro_batch_size": 4}}, '"micro_batch_size" cannot be combined', "whole batch"),
        ({"hyperparams": {"ensemble": 3}}, '"ensemble" cannot be combined', "Leave it out"),
        ({"hyperparams": {"batch_size": 1}}, '"batch_size" is 1', "from 2 to 16384"),
        ({"hyperparams": {"loss": "mse"}}, 'loss "mse" is not for pairs', "in_batch_softmax"),
        ({"devices": 2}, "devices is 2", "one device"),
        ({"transform": {"day": "spent * 2"}}, "transform cannot be combined", "view"),
        ({"preprocess": {"encode": "target"}}, "encode is encoded as target", "tokens"),
        ({"preprocess": {"encode": {"product": "target"}}}, 'column "product" is encoded as target', "tokens"),
        (
            {"task": "regression", "target": "spent", "architecture": "two_towers"},
            "architecture two_towers learns which rows go together, and the task is regression",
            "task => 'pairs'",
        ),
    ],
)
def test_wrong_arguments_are_refused(demo: Connection, arguments: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(psycopg.Error) as caught, demo.transaction():
        train(demo, **arguments)
    assert message in str(caught.value.diag.message_primary)
    assert hint in f"{caught.value.diag.message_detail} {caught.value.diag.message_hint}"
