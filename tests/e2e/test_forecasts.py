"""Check with a real controller that series are trained on, forecast, evaluated and judged beside simple forecasts."""

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Service
from tests.e2e.trainings import child_pids, wait_until_training, weights

pytestmark = pytest.mark.postgres

TABLE = """
create table sales as
select s as store, case s when 1 then 'city' else 'village' end as area, date '2026-01-01' + d as day,
       d % 11 = 0 as promotion,
       case when d < 120 then s * 10 + 3 * sin(2 * pi() * d / 7) + 5 * (d % 11 = 0)::int end as sold,
       case when d < 120 then s * 100 + d end as visitors
  from generate_series(1, 3) as s, generate_series(0, 124) as d;
create table plans as
select s as store, date '2026-05-01' + d as day, d = 2 as promotion
  from generate_series(1, 3) as s, generate_series(0, 6) as d;
create table nile as select 1870 + n as year, 900 + 100 * sin(n) as flow from generate_series(1, 60) as n;
grant select on sales, nile to tensile_reader"""
FORECAST = {"time": "day", "series": ["store"], "horizon": 5, "known": ["promotion"], "static": ["area"]}
TRAIN = """
select tensile_train(%s, %s::regclass, %s, task => 'forecast', forecast => %s, hyperparams => %s, deploy => %s,
                     architecture => '{"type": "window_mlp", "blocks": 1}')"""


def train(demo: psycopg.Connection, model: str, table: str, target: str, forecast: object, **options: object) -> int:
    deploy = options.pop("deploy", "if_better")
    hyperparams = {"epochs": 3, "batch_size": 64} | options
    row = demo.execute(
        TRAIN.encode(), (model, table, target, json.dumps(forecast), json.dumps(hyperparams), deploy)
    ).fetchone()
    assert row is not None
    return int(row[0])


@pytest.fixture(scope="module")
def demo(running: Service) -> Iterator[psycopg.Connection]:
    with running.database.connect("demo") as connection:
        connection.execute(TABLE.encode())
        job = train(connection, "sold", "sales", "sold", FORECAST)
        assert running.until_ended(job) == ["succeeded"], running.value(
            "select string_agg(error_message, ' ') from tensile.jobs"
        )
        yield connection


def rows(demo: psycopg.Connection, statement: str, *arguments: object) -> list[Any]:
    return demo.execute(statement.encode(), arguments).fetchall()


@pytest.mark.nightly
def test_the_next_steps_of_each_series_are_forecast_with_an_interval(demo: psycopg.Connection) -> None:
    forecast = rows(demo, "select * from tensile_forecast('sold', 'sales')")
    assert [(key, step, time) for key, _, step, time, *_ in forecast] == [
        ({"store": store}, step, f"2026-05-0{step}") for store in (1, 2, 3) for step in range(1, 6)
    ]
    assert all(lower <= value <= upper for *_, value, lower, upper in forecast)
    assert all(abs(value - 10 * key["store"]) < 10 for key, *_, value, _, _ in forecast)
    chosen = rows(demo, "select * from tensile_forecast('sold', 'sales', horizon => 2, series => '{\"store\": 2}')")
    expected = [row for row in forecast if row[0]["store"] == 2 and row[2] <= 2]
    assert [row[:4] for row in chosen] == [row[:4] for row in expected]
    assert [row[4:] for row in chosen] == [pytest.approx(row[4:], rel=1e-5) for row in expected]


# By day tests/executor/run/test_forecast_networks.py trains a network for two targets.
@pytest.mark.nightly
def test_several_targets_are_forecast_beside_one_another(running: Service, demo: psycopg.Connection) -> None:
    both = {"time": "day", "series": ["store"], "horizon": 3, "window": 14}
    assert running.until_ended(train(demo, "both", "sales", '["sold", "visitors"]', both)) == ["succeeded"]
    forecast = rows(demo, "select series ->> 'store', target, step from tensile_forecast('both', 'sales')")
    assert forecast == [(s, target, step) for s in "123" for target in ("sold", "visitors") for step in (1, 2, 3)]


def test_values_after_the_origin_are_not_used(demo: psycopg.Connection) -> None:
    at_origin = rows(demo, "select * from tensile_forecast('sold', 'sales', origin => '2026-04-10')")
    with demo.transaction(force_rollback=True):
        demo.execute("update sales set sold = 1e6, visitors = 0 where day > date '2026-04-10'")
        assert rows(demo, "select * from tensile_forecast('sold', 'sales', origin => '2026-04-10')") == at_origin
    assert at_origin[0][3] == "2026-04-11"


def test_series_without_rows_are_refused(demo: psycopg.Connection) -> None:
    call = "tensile_forecast('sold', 'sales', series => '{\"store\": 9}'"
    for own in (f"{call})", f"{call}, origin => '2026-04-10')"):
        with pytest.raises(psycopg.Error) as caught:
            rows(demo, f"select * from {own}")
        assert str(caught.value).startswith(
            'public.sales has no rows of the series {"store": 9}\n'
            "DETAIL:  Values are compared as texts, as PostgreSQL writes them.\n"
            "HINT:  See which series it has: select distinct store from public.sales;"
        )


def test_an_origin_after_the_last_row_is_refused_or_told(demo: psycopg.Connection) -> None:
    with pytest.raises(psycopg.Error) as caught:
        rows(demo, "select * from tensile_forecast('sold', 'sales', origin => '2026-05-02')")
    assert str(caught.value).startswith(
        "origin 2026-05-02 is after the last row with a value of sold, at 2026-04-30\n"
        "DETAIL:  The rows are those of public.sales. A forecast goes on from a row of the past.\n"
        "HINT:  Leave origin out to forecast from the last rows, or give 2026-04-30 or earlier."
    )
    notices: list[str | None] = []
    demo.add_notice_handler(lambda notice: notices.append(notice.message_primary))
    with demo.transaction(force_rollback=True):
        demo.execute("update sales set sold = null where store = 2 and day > '2026-04-01'")
        first_times = rows(demo, "select series ->> 'store', min(\"time\") from tensile_forecast('sold', 'sales', "
                           "origin => '2026-04-10') group by 1 order by 1")  # fmt: skip
    assert first_times == [("1", "2026-04-11"), ("2", "2026-04-02"), ("3", "2026-04-11")]
    expected = "1 of 3 series end before the origin 2026-04-10, and are forecast from their own last rows"
    assert notices == [expected]


def test_known_columns_come_from_later_rows_or_from_another_relation(demo: psycopg.Connection) -> None:
    planned = rows(demo, "select * from tensile_forecast('sold', 'sales', future => 'plans')")
    assert planned != rows(demo, "select * from tensile_forecast('sold', 'sales')")
    with demo.transaction(force_rollback=True):
        demo.execute("delete from sales where sold is null")
        assert rows(demo, "select * from tensile_forecast('sold', 'sales', future => 'plans')") == planned
        with pytest.raises(psycopg.Error) as caught:
            rows(demo, "select * from tensile_forecast('sold', 'sales')")
    assert str(caught.value).startswith(
        'series (store 1) has no value of "promotion" at 2026-05-01, which is known in advance\n'
        "DETAIL:  Step 1 of 5 needs it.\nHINT:  Add rows with future times, whose target is NULL, or name a relation"
    )


def test_a_version_is_judged_beside_simple_forecasts(demo: psycopg.Connection) -> None:
    metrics = dict(rows(demo, "select * from tensile_evaluate('sold')"))
    assert set(metrics) == {"mase", "mae", "rmse", "smape", "pinball", "coverage"}
    steps = rows(
        demo,
        "select step, value, naive, seasonal_naive, exponential_smoothing "
        "from tensile_forecast_metrics('sold') where metric = 'mae' order by step",
    )
    assert [step for step, *_ in steps] == [1, 2, 3, 4, 5]
    assert metrics["mae"] == pytest.approx(sum(value for _, value, *_ in steps) / 5)
    assert all(naive > 0 and seasonal > 0 and smoothed > 0 for *_, naive, seasonal, smoothed in steps)
    baseline = rows(demo, "select baseline from tensile.model_list where model = 'sold'")[0][0]
    assert 0 < baseline < 2
    evaluated = dict(rows(demo, "select * from tensile_evaluate('sold', 'sales')"))
    assert set(evaluated) == set(metrics)


@pytest.mark.nightly
def test_a_repeated_training_is_compared_from_the_same_origins(running: Service, demo: psycopg.Connection) -> None:
    job = train(demo, "sold", "sales", "sold", FORECAST | {"window": 21}, epochs=1, learning_rate=1e-6)
    assert running.until_ended(job) == ["succeeded"]
    row = rows(demo, "select not_deployed, metric_name from tensile.model_versions where job_id = %s", job)[0]
    assert row[1] == "mase"
    assert row[0] is None or "mase" in row[0]
    nile = train(demo, "nile", "nile", "flow", {"time": "year", "horizon": 4}, ensemble=2)
    assert running.until_ended(nile) == ["succeeded"]
    again = rows(demo, "select tensile_retrain('nile')")[0][0]
    assert running.until_ended(again) == ["succeeded"]


def test_predictions_of_single_rows_are_refused(demo: psycopg.Connection) -> None:
    for call in (
        "tensile_predict('sold', s) from sales as s limit 1",
        "* from tensile_predict_table('sold', 'sales', array['store'])",
        "tensile_predict_into('sold', 'sales', 'out')",
        "* from tensile_explain_prediction('sold', (select s from sales as s limit 1))",
        "* from tensile_feature_importance('sold')",
        "* from tensile_split('sold')",
    ):
        with pytest.raises(psycopg.Error) as caught, demo.transaction():
            rows(demo, f"select {call}")
        assert 'model "sold" forecasts the series of a relation' in str(caught.value)
        assert "tensile_forecast('sold', 'table')" in str(caught.value)


def test_a_shared_model_forecasts_what_its_user_may_read(running: Service, demo: psycopg.Connection) -> None:
    with running.database.connect("bob") as bob:
        with pytest.raises(psycopg.Error, match='there is no model "sold"'):
            rows(bob, "select * from tensile_forecast('sold', 'sales')")
        rows(demo, "select tensile_grant_model('sold', 'bob')")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied for table sales"):
            rows(bob, "select * from tensile_forecast('sold', 'sales')")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied for table sales"):
            rows(bob, "select * from tensile_evaluate('sold', 'sales')")
        bob.execute(
            "create temporary table own as select 'new' as area, 9 as store, date '2026-01-01' + d as day,"
            " false as promotion,"
            " case when d < 30 then 90.0 + d % 7 end as sold from generate_series(0, 34) as d"
        )
        forecast = rows(bob, "select series ->> 'store', value from tensile_forecast('sold', 'own')")
        assert [store for store, _ in forecast] == ["9"] * 5
        assert all(80 < value < 110 for _, value in forecast)
        assert rows(bob, "select count(*) from tensile_forecast_metrics('sold')")[0][0] > 0
        hostile = "'1') union select * from pg_authid --"
        with pytest.raises(psycopg.Error, match="invalid input syntax for type date"):
            rows(bob, "select * from tensile_forecast('sold', 'own', origin => %s)", hostile)
        chosen = json.dumps({"store": hostile})
        with pytest.raises(psycopg.errors.DataException, match="has no rows of the series"):
            rows(bob, "select * from tensile_forecast('sold', 'own', series => %s)", chosen)
    rows(demo, "select tensile_revoke_model('sold', 'bob')")


@pytest.mark.nightly
def test_a_plan_of_a_forecast_is_explained_and_a_search_tries_forecasts(
    running: Service, demo: psycopg.Connection
) -> None:
    explained = rows(
        demo,
        "select policy, peak_bytes from tensile_explain('sold', 'sales', 'sold', task => 'forecast', forecast => %s)",
        json.dumps(FORECAST),
    )
    assert all(peak > 0 for _, peak in explained)
    search = rows(
        demo,
        "select tensile_search('found', 'sales', target => 'sold', task => 'forecast', forecast => %s,"
        " hyperparams => %s, trials => 2)",
        json.dumps(FORECAST),
        json.dumps({"epochs": 1, "batch_size": 64, "learning_rate": {"choices": [0.001, 0.01]}}),
    )[0][0]
    assert running.until_ended(search) == ["succeeded"]
    assert rows(demo, "select count(*) from tensile_forecast('found', 'sales')") == [(15,)]


@pytest.mark.nightly
def test_a_view_of_moments_is_forecast_in_the_calendar_of_a_zone(running: Service, demo: psycopg.Connection) -> None:
    demo.execute(
        "create view moments as select store, sold, (day + time '08:00') at time zone 'Europe/Berlin' as at"
        " from sales"
    )
    forecast = {"time": "at", "series": ["store"], "horizon": 2, "time_zone": "Europe/Berlin"}
    job = train(demo, "zoned", "moments", "sold", forecast, epochs=1)
    assert running.until_ended(job) == ["succeeded"]
    times = rows(demo, "select \"time\" from tensile_forecast('zoned', 'moments', series => '{\"store\": 1}')")
    assert times == [("2026-05-01 06:00:00+00",), ("2026-05-02 06:00:00+00",)]
    # The clock went forward on 29 March, so the day before ends an hour later.
    before = "select \"time\" from tensile_forecast('zoned', 'moments', origin => '2026-03-28 12:00+01') limit 2"
    assert rows(demo, before) == [("2026-03-29 06:00:00+00",), ("2026-03-30 06:00:00+00",)]
    with pytest.raises(psycopg.Error, match="knows no column in advance"):
        rows(demo, "select * from tensile_forecast('zoned', 'moments', future => 'plans')")


@pytest.mark.nightly
def test_a_forecast_resumes_with_equal_bits_after_a_kill(running: Service, demo: psycopg.Connection) -> None:
    first = train(demo, "calm_forecast", "sales", "sold", FORECAST, epochs=60, deploy="never")
    assert running.until_ended(first) == ["succeeded"]
    second = train(demo, "killed_forecast", "sales", "sold", FORECAST, epochs=60, deploy="never")
    wait_until_training(running, second)
    for pid in child_pids(running, f"tensile trainer {second}"):
        os.kill(pid, signal.SIGKILL)
    assert running.until_ended(second) == ["succeeded"]
    assert weights(running, second) == weights(running, first)
