"""Arguments of a training that finds anomalies are checked when it is enqueued; a target is optional."""

import json
from typing import Any

import psycopg
import pytest

from .conftest import Connection, value

pytestmark = [pytest.mark.postgres, pytest.mark.shares_database]

TABLE = """
create table pumps as select n as id, n * 1.5 as pressure, 'a' as site, n = 3 as broken, '\\x00'::bytea as photo
  from generate_series(1, 20) as n;
grant select on pumps to tensile_reader"""


@pytest.fixture
def demo(alice: Connection) -> Connection:
    if value(alice, "select to_regclass('pumps') is null"):
        alice.execute(TABLE.encode())
    return alice


def train(demo: Connection, **arguments: Any) -> dict[str, Any]:
    """Enqueue a training, and return its specification."""
    own = {"task": "anomaly", "exclude": ["photo", "id"]} | arguments
    named = ", ".join(f"{name} => %({name})s" for name in own)
    values = {name: json.dumps(option) if isinstance(option, dict) else option for name, option in own.items()}
    row = demo.execute(f"select tensile_train('m', 'pumps', {named})".encode(), values).fetchone()
    assert row is not None
    return dict(value(demo, "select spec from tensile.jobs where job_id = %s", row[0]))


def test_anomalies_need_no_target(demo: Connection) -> None:
    spec = train(demo, hyperparams={"contamination": 0.05})
    assert (spec["task"], spec["target"], sorted(spec["column_numbers"])) == (
        "anomaly",
        "",
        ["broken", "pressure", "site"],
    )
    judged = train(demo, target="broken", metric="average_precision")
    assert (judged["target"], judged["metric"]) == ("broken", "average_precision")
    assert sorted(judged["column_numbers"]) == ["broken", "pressure", "site"]


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ({"target": "site"}, "which anomaly cannot predict", "a boolean column, or one of 0 and 1"),
        ({"metric": "roc_auc"}, "metric roc_auc needs a column that says which rows are anomalies", "target =>"),
        ({"early_stop": {"metric": "roc_auc"}}, "early_stop roc_auc needs a column", "target =>"),
        ({"metric": "r2"}, 'unknown metric "r2" for anomaly', "reconstruction_error, roc_auc, average_precision"),
        ({"architecture": "tabm"}, "architecture tabm cannot find anomalies", "auto or autoencoder"),
        ({"architecture": "boosting"}, "architecture boosting cannot find anomalies", "auto or autoencoder"),
        ({"hyperparams": {"weight": "pressure"}}, '"weight" cannot be combined', "all rows count the same"),
        ({"hyperparams": {"contamination": 0.7}}, "contamination", "0.5"),
        ({"hyperparams": {"ensemble": 3}}, '"ensemble" cannot be combined', "Leave it out"),
        ({"hyperparams": {"loss": "mse"}}, 'loss "mse" is not for anomaly', "reconstruction"),
        ({"exclude": ["id"]}, "task anomaly does not read images: photo", "exclude"),
        ({"preprocess": {"encode": "tokens"}}, "encode is encoded as tokens, which task anomaly", "onehot"),
        ({"preprocess": {"encode": {"site": "target"}}}, 'column "site" is encoded as target', "onehot"),
        (
            {"task": "regression", "target": "pressure", "architecture": "autoencoder"},
            "architecture autoencoder finds anomalies, and the task is regression",
            "task => 'anomaly'",
        ),
        (
            {"task": "regression", "target": "pressure", "hyperparams": {"contamination": 0.1}},
            '"contamination" means nothing to task regression',
            "Leave it out",
        ),
    ],
)
def test_wrong_arguments_are_refused(demo: Connection, arguments: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(psycopg.Error) as caught, demo.transaction():
        train(demo, **arguments)
    assert message in str(caught.value.diag.message_primary)
    assert hint in f"{caught.value.diag.message_detail} {caught.value.diag.message_hint}"
