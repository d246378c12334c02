"""Arguments of a forecast are checked when it is enqueued, and forecasts are read with the caller's own rights."""

import json
from typing import Any

import psycopg
import pytest

from .conftest import Connection, value

pytestmark = [pytest.mark.postgres, pytest.mark.shares_database]

TABLE = """
create table sales as
select s as store, 'a'::text as area, date '2026-01-01' + d as day, now() as noted,
       timestamptz '2026-01-01' + d * interval '1 day' as at, d % 7 = 0 as promotion, s * 10 + d as sold,
       array[1] as several
  from generate_series(1, 2) as s, generate_series(0, 59) as d;
create table plain as select n * 1.5 as sold, n as step from generate_series(1, 9) as n;
grant select on sales, plain to tensile_reader"""


@pytest.fixture
def demo(alice: Connection) -> Connection:
    if value(alice, "select to_regclass('sales') is null"):
        alice.execute(TABLE.encode())
    return alice


def train(demo: Connection, forecast: object, table: str = "sales", **arguments: object) -> dict[str, Any]:
    """Enqueue a forecast, and return its specification."""
    own = {"target": "sold", "task": "forecast"} | arguments
    named = "".join(f", {name} => %({name})s" for name in own)
    values = {name: json.dumps(value) if isinstance(value, dict) else value for name, value in own.items()}
    values["forecast"] = None if forecast is None else json.dumps(forecast)
    call = f"select tensile_train('m', '{table}', forecast => %(forecast)s{named})"
    row = demo.execute(call.encode(), values).fetchone()
    assert row is not None
    return dict(value(demo, "select spec from tensile.jobs where job_id = %s", row[0]))


def test_a_forecast_is_enqueued_with_the_columns_that_it_reads(demo: Connection) -> None:
    spec = train(demo, {"horizon": 3, "time": "day", "series": ["store"], "known": ["promotion"], "static": ["area"]})
    assert spec["task"] == "forecast"
    assert spec["features"] == ["day", "store", "promotion", "area"]
    assert set(spec["column_numbers"]) == {"store", "area", "day", "promotion", "sold"}
    assert spec["forecast"] == {
        "horizon": 3,
        "time": "day",
        "series": ["store"],
        "known": ["promotion"],
        "static": ["area"],
    }


def test_the_argument_alone_says_that_the_task_is_a_forecast(demo: Connection) -> None:
    assert train(demo, {"horizon": 2, "time": "step"}, "plain", task=None)["task"] == "forecast"


@pytest.mark.parametrize(
    ("forecast", "arguments", "message", "hint"),
    [
        (None, {}, "task forecast needs the argument forecast", "Say how many steps ahead"),
        ({"time": "day"}, {}, 'forecast: parameter "horizon" is missing', "Give an integer at least 1"),
        ({"horizon": 0, "time": "day"}, {}, 'forecast: "horizon" is 0', '"horizon" must be an integer'),
        ({"horizon": 1}, {}, "forecast names no time", "Name one"),
        (
            {"horizon": 1, "time": "dai"},
            {},
            'column "dai" of relation "public.sales" does not exist',
            "The columns are",
        ),
        (
            {"horizon": 1, "time": "area"},
            {},
            'forecast: column "area" of table "public.sales" has type text',
            "Name a date",
        ),
        ({"horizon": 1, "time": "day", "series": ["sold"]}, {}, 'column "sold" is the target', "Leave it out"),
        (
            {"horizon": 1, "time": "day", "known": ["area"]},
            {},
            'column "area" of table "public.sales" has type text',
            "transform",
        ),
        ({"horizon": 1, "time": "day", "known": ["day"]}, {}, 'column "day" is both time and known', "Name it once"),
        (
            {"horizon": 1, "time": "day", "step": "5 parsecs"},
            {},
            'forecast: "step" is "5 parsecs"',
            "Give a number and a unit",
        ),
        ({"horizon": 1, "time": "day", "step": "1 hour"}, {}, "and the time is a date", "Give a day or more"),
        ({"horizon": 1, "time": "day", "step": "7"}, {}, "and the time is of kind date", "Give a unit"),
        ({"horizon": 1, "time": "day", "time_zone": "UTC"}, {}, '"time_zone" is given', "Leave it out"),
        ({"horizon": 1, "time": "at", "time_zone": "Mars/Base"}, {}, '"Mars/Base" is not known', "pg_timezone_names"),
        (
            {"horizon": 1, "time": "day", "window": 4, "season": 7},
            {},
            '"season" 7 is longer than "window" 4',
            "two seasons",
        ),
        (
            {"horizon": 1, "time": "day"},
            {"features": ["store"]},
            "features cannot be combined",
            "Name columns in forecast",
        ),
        (
            {"horizon": 1, "time": "day"},
            {"split": {"stratify": "store"}},
            'split: "stratify" cannot',
            "shares of the steps",
        ),
        (
            {"horizon": 1, "time": "day"},
            {"architecture": "boosting"},
            "architecture boosting cannot forecast",
            "window_mlp",
        ),
        ({"horizon": 1, "time": "day"}, {"metric": "r2"}, 'unknown metric "r2" for forecast', "mase, mae"),
        ({"horizon": 1, "time": "day"}, {"target": "area"}, "which forecast cannot predict", "a numeric column"),
        (
            {"horizon": 1, "time": "day"},
            {"task": "regression"},
            "forecast means nothing to task regression",
            "forecast",
        ),
        (
            {"horizon": 1, "time": "day"},
            {"hyperparams": {"loss": "mse"}},
            'loss "mse" is not for forecast',
            "pinball",
        ),
    ],
)
def test_wrong_arguments_are_refused_when_a_forecast_is_enqueued(
    demo: Connection, forecast: object, arguments: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(psycopg.Error) as caught:
        train(demo, forecast, **arguments)
    assert message in str(caught.value.diag.message_primary)
    assert hint in str(caught.value.diag.message_hint)


def test_a_network_for_windows_needs_a_forecast(demo: Connection) -> None:
    with pytest.raises(psycopg.Error, match="architecture tcn forecasts series, and the task is regression"):
        demo.execute("select tensile_train('m', 'sales', 'sold', task => 'regression', architecture => 'tcn')")
