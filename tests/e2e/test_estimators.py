"""Check with a real controller that models of scikit-learn train, predict and compete like networks."""

import os
import signal
from collections.abc import Iterator

import psycopg
import pytest

from tests.e2e.conftest import Service
from tests.e2e.trainings import check_killed_without_fault, child_pids
from tests.nightly import nightly_unless

pytestmark = pytest.mark.postgres

TABLES = """
create table if not exists prices as
select n as id, sin(n) as a, (array['x', 'y', 'z'])[n % 3 + 1] as b, n % 7 as c, array[cos(n), n % 5]::real[] as d,
       3 * sin(n) + n % 3 as price, case when sin(n) + n % 3 > 1 then 'high' else 'low' end as level
  from generate_series(1, 800) as n;
alter table prices add primary key (id);
grant select on prices to tensile_reader"""


@pytest.fixture(scope="module")
def service(running: Service) -> Service:
    with running.database.connect("demo") as demo:
        demo.execute(TABLES.encode())
    return running


@pytest.fixture
def demo(service: Service) -> Iterator[psycopg.Connection]:
    with service.database.connect("demo") as connection:
        yield connection


def train(demo: psycopg.Connection, model: str, target: str, architecture: str, more: str = "") -> int:
    statement = f"select tensile_train(%s, 'prices', %s, architecture => %s, exclude => '{{price,level}}'{more})"
    if target == "level":
        statement = statement.replace("'{price,level}'", "'{price}'")
    else:
        statement = statement.replace("'{price,level}'", "'{level}'")
    row = demo.execute(statement.encode(), (model, target, architecture)).fetchone()
    assert row is not None
    return int(row[0])


# The estimators for scikit-learn train linear models by day (test_sklearn_estimators.py).
@pytest.mark.nightly
@pytest.mark.parametrize(
    "architecture", nightly_unless(lambda architecture: architecture == "boosting", ["boosting", "linear"])
)
def test_a_model_is_trained_without_a_device_and_predicts_in_every_way(
    service: Service, demo: psycopg.Connection, architecture: str
) -> None:
    value, label = (train(demo, f"{architecture}_{target}", target, architecture) for target in ("price", "level"))
    assert service.until_ended(value, label) == ["succeeded"] * 2, service.log.read_text()

    assert service.value("select count(*) from tensile.plans where job_id = any (%s)", [value, label]) == 0
    for model, metric, least in ((f"{architecture}_price", "r2", 0.8), (f"{architecture}_level", "accuracy", 0.85)):
        info = demo.execute(
            "select metric_name, metric, parameters from tensile_training_info(%s)", (model,)
        ).fetchone()
        assert info is not None
        assert (info[0], info[1] > least, info[2] > 5) == (metric, True, True)
        evaluated = demo.execute(
            "select value from tensile_evaluate(%s, 'prices') where metric = %s", (model, metric)
        )
        assert evaluated.fetchall()[0][0] > least
    single = demo.execute(
        f"select tensile_predict('{architecture}_price', p) from prices as p where id <= 60 order by id".encode()
    )
    table = demo.execute(
        f"""select value from tensile_predict_table('{architecture}_price', 'prices')
             where (key ->> 'id')::int <= 60 order by (key ->> 'id')::int""".encode()
    )
    assert [row[0] for row in single] == pytest.approx([row[0] for row in table], rel=1e-5, abs=1e-5)
    job = demo.execute(f"select tensile_predict_into('{architecture}_level', 'prices', 'levels')".encode()).fetchone()
    assert job is not None
    assert service.until_ended(job[0]) == ["succeeded"]
    same = f"""select count(*) from levels join prices as p using (id)
                where id <= 60 and label = tensile_predict_label('{architecture}_level', p)"""
    assert demo.execute(same.encode()).fetchone() == (60,)
    assert demo.execute("select count(label) from levels").fetchone() == (800,)
    demo.execute("drop view levels")


@pytest.mark.nightly
def test_a_network_and_boosting_compete_for_the_deployment(service: Service, demo: psycopg.Connection) -> None:
    jobs = [
        train(demo, "rivals", "price", architecture, more)
        for architecture, more in (
            ('{"type": "mlp", "hidden": [2]}', ", hyperparams => '{\"epochs\": 1}'"),
            ("boosting", ", hyperparams => '{}'"),
        )
    ]
    assert service.until_ended(jobs[0]) == ["succeeded"]
    assert service.until_ended(jobs[1]) == ["succeeded"], service.log.read_text()
    rows = demo.execute("select architecture ->> 'type', deployed from tensile_training_info('rivals')").fetchall()
    assert rows == [("boosting", True), ("mlp", False)]
    history = "select count(*) from tensile.metrics where job_id = %s and name = 'valid_loss'"
    assert service.value(history, jobs[1]) > 3
    events = "select detail ->> 'message' from tensile.job_events where job_id = %s and kind = 'settings'"
    assert "boosting was fitted in" in service.value(events, jobs[1])


@pytest.mark.nightly
def test_a_killed_fit_is_repeated_with_the_same_result(service: Service, demo: psycopg.Connection) -> None:
    slow = '{"type": "boosting", "iterations": 1000, "patience": 1000}'
    calm = train(demo, "calm_fit", "price", slow)
    assert service.until_ended(calm) == ["succeeded"]
    killed = train(demo, "killed_fit", "price", slow)
    phase = "select phase::text from tensile.jobs where job_id = %s"
    service.until(lambda: service.value(phase, killed) == "training", "the fit to begin")
    for trainer in child_pids(service, "tensile trainer"):
        os.kill(trainer, signal.SIGKILL)
    assert service.until_ended(killed) == ["succeeded"], service.log.read_text()
    check_killed_without_fault(service, killed)
    # The stored bytes differ, as they have the time of writing.
    outputs = "select array_agg(value order by key) from tensile_predict_table(%s, 'prices')"
    assert demo.execute(outputs, ("killed_fit",)).fetchall() == demo.execute(outputs, ("calm_fit",)).fetchall()
