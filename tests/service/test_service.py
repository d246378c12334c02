"""Check the whole service with a real database, from SQL and from clients of its own."""

import contextlib
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from indb_tensile.bench.harness.processes import prediction_calls as bench
from indb_tensile.catalog.connection import connect
from indb_tensile.cluster import Cluster
from indb_tensile.errors import MissingError
from indb_tensile.job import Task
from indb_tensile.learning.evaluation.class_figures import calibration_rows, confusion_rows, roc_rows
from indb_tensile.learning.evaluation.permutation_importance import permutation_importance
from indb_tensile.learning.evaluation.single_metric import single_metric
from indb_tensile.learning.models.model_predictor import ModelPredictor
from tests.conftest import Database, fresh_database
from worker import service as program

from .conftest import ENVIRONMENT, MODULE, Forks, Published, Service, fill, publish, service_of
from .fakes import DEADLINE_S, Client, wait_until

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def flowers(database: Database) -> Published:
    """A classification model with a text label."""
    with database.connect(user="demo") as connection:
        fill(connection, "flowers", "label", "text: (array['red', 'blue'])[n % 2 + 1]")
    return publish(database, "flowers", "flowers")


def rows_of(database: Database, table: str) -> list[dict[str, Any]]:
    with database.connect() as connection:
        return [row for (row,) in connection.execute(f"select to_jsonb(t) from {table} as t order by id")]


def scalar(connection: psycopg.Connection, statement: str) -> Any:
    result = connection.execute(statement).fetchone()
    assert result is not None
    return result[0]


# --- predictions -----------------------------------------------------------------------------------------------


def test_row_and_json_get_the_same_prediction_from_sql(
    database: Database, service: Service, houses: Published
) -> None:
    row = rows_of(database, "houses")[4]
    (expected,) = houses.predictor.predict_rows([row])
    with database.connect(user="demo") as connection:
        of_row = scalar(connection, "select tensile_predict('houses', t) from houses as t where id = 5")
        of_json = scalar(
            connection, f"""select tensile_predict('houses', '{{"a": {row["a"]}, "b": "{row["b"]}"}}'::jsonb)"""
        )
    assert of_row == pytest.approx(expected.value)
    assert of_json == of_row


def test_batch_gets_the_predictions_of_its_rows(database: Database, service: Service, houses: Published) -> None:
    expected = [p.value for p in houses.predictor.predict_rows(rows_of(database, "houses"))]
    with database.connect(user="demo") as connection:
        single_rows = connection.execute(
            "select tensile_predict('houses', t) from houses as t order by id"
        ).fetchall()
        batch = scalar(
            connection, "select tensile_predict_batch('houses', array_agg(t order by id)) from houses as t"
        )
    assert [value for (value,) in single_rows] == pytest.approx(expected, rel=1e-5)
    assert batch == pytest.approx(expected, rel=1e-5)  # a batch of another size has other last bits


def test_text_label_is_predicted_with_probabilities_and_outputs(
    database: Database, service: Service, flowers: Published
) -> None:
    (expected,) = flowers.predictor.predict_rows(rows_of(database, "flowers")[:1])
    with database.connect(user="demo") as connection:
        label = scalar(connection, "select tensile_predict_label('flowers', t) from flowers as t where id = 1")
        probabilities = connection.execute(
            "select p.* from flowers as t, tensile_predict_proba('flowers', t) as p where id = 1"
        ).fetchall()
        outputs = scalar(connection, "select tensile_predict_vector('flowers', t) from flowers as t where id = 1")
    assert label == expected.label
    assert dict(probabilities) == pytest.approx(
        dict(zip(flowers.predictor.labels, expected.probabilities, strict=True))
    )
    assert outputs == pytest.approx(list(expected.vector))


def test_numeric_prediction_of_a_text_label_is_refused_with_a_hint(
    database: Database, service: Service, flowers: Published
) -> None:
    with (
        database.connect(user="demo") as connection,
        pytest.raises(psycopg.errors.InvalidParameterValue) as caught,
    ):
        connection.execute("select tensile_predict('flowers', t) from flowers as t")
    assert caught.value.diag.message_primary == 'the model predicts "label", a text label and not a number'
    assert "tensile_predict_label" in (caught.value.diag.message_hint or "")


def test_row_without_a_feature_is_refused_with_the_columns_name(
    database: Database, service: Service, houses: Published
) -> None:
    with database.connect(user="demo") as connection:
        with pytest.raises(psycopg.Error, match="the row has no column b"):
            connection.execute("""select tensile_predict('houses', '{"a": 1}'::jsonb)""")
        with pytest.raises(psycopg.Error, match=r'column "a": .* is not a number'):
            connection.execute("""select tensile_predict('houses', '{"a": "much", "b": "x"}'::jsonb)""")


def test_evaluation_from_sql_returns_the_models_metrics(
    database: Database, service: Service, flowers: Published
) -> None:
    expected = flowers.predictor.evaluate_rows(rows_of(database, "flowers"))
    with database.connect(user="demo") as connection:
        result: dict[str, float] = dict(
            connection.execute("select * from tensile_evaluate('flowers', 'flowers')").fetchall()
        )
    assert result == pytest.approx(expected)
    assert "accuracy" in result


def test_figures_from_sql_are_those_of_the_models_outputs(
    database: Database, service: Service, flowers: Published, houses: Published
) -> None:
    rows = rows_of(database, "flowers")
    names = flowers.predictor.preprocessor.target.names
    targets = flowers.predictor.preprocessor.targets_of(rows)
    outputs = flowers.predictor.outputs(flowers.predictor.preprocessor.transform_rows(rows))
    with database.connect(user="demo") as connection:
        matrix = connection.execute("select * from tensile_confusion_matrix('flowers', 'flowers')").fetchall()
        curve = connection.execute(
            "select * from tensile_roc_curve('flowers', label => %s, relation => 'flowers')", (names[0],)
        ).fetchall()
        bins = connection.execute("select * from tensile_calibration('flowers', 'flowers', bins => 7)").fetchall()
        with pytest.raises(psycopg.errors.InvalidParameterValue, match='does not know the label "no"') as caught:
            connection.execute("select * from tensile_roc_curve('flowers', 'no', 'flowers')")
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="a number, and has no confusion matrix"):
            connection.execute("select * from tensile_confusion_matrix('houses', 'houses')")
    assert matrix == confusion_rows(Task.CLASSIFICATION, outputs, targets, names, None)
    assert curve == [pytest.approx(row) for row in roc_rows(Task.CLASSIFICATION, outputs, targets, names, names[0])]
    expected = calibration_rows(Task.CLASSIFICATION, outputs, targets, names, None, 7)
    assert bins == [pytest.approx(row) for row in expected]
    assert caught.value.diag.message_hint == f"Its labels are {', '.join(names)}."


def test_importance_from_sql_is_equal_for_equal_seeds_and_names_the_metric(
    database: Database, service: Service, houses: Published
) -> None:
    def importance(connection: psycopg.Connection, arguments: str) -> list[tuple[Any, ...]]:
        statement = f"select * from tensile_feature_importance('houses', 'houses', {arguments})"
        return connection.execute(statement.encode()).fetchall()

    with database.connect(user="demo") as connection:
        first = importance(connection, "seed => 7")
        assert first == importance(connection, "seed => 7")
        assert [row[1] for row in first] != [row[1] for row in importance(connection, "seed => 8")]
    assert {row[0] for row in first} == {"a", "b"}
    assert [row[1] for row in first] == sorted((row[1] for row in first), reverse=True)
    assert {row[3] for row in first} == {"r2"}
    predictor, rows = houses.predictor, rows_of(database, "houses")
    expected = permutation_importance(
        predictor.outputs,
        lambda outputs: predictor_metric(predictor, outputs, rows),
        predictor.preprocessor.transform_rows(rows),
        predictor.preprocessor,
        metric="r2",
        repeats=5,
        seed=7,
    )
    assert {row[0]: row[1:3] for row in first} == {each[0]: pytest.approx(each[1:]) for each in expected}


def test_prediction_is_explained_from_sql_in_each_form_of_a_row(
    database: Database, service: Service, flowers: Published
) -> None:
    with database.connect(user="demo") as connection:
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="no baseline row") as caught:
            connection.execute("""select * from tensile_explain_prediction('flowers', '{"a": 1, "b": "x"}'::jsonb)""")
        assert "tensile_feature_importance" in (caught.value.diag.message_hint or "")
        with database.connect() as postgres:
            postgres.execute(
                "update tensile.version_bundles set bundle = bundle || jsonb_build_object('baseline', %s::jsonb)"
                " where version_id = %s",
                (Jsonb([0.0] * len(flowers.predictor.preprocessor.outputs)), flowers.version),
            )
        service.stop()
        service.start()
        rows = connection.execute(
            "select e.* from flowers as t, tensile_explain_prediction('flowers', t) as e where t.id = 1"
        ).fetchall()
        of_json = connection.execute(
            "select e.* from flowers as t, tensile_explain_prediction('flowers', to_jsonb(t), seed => 5) as e"
            " where t.id = 1"
        ).fetchall()
        assert connection.execute("select * from tensile_explain_prediction('flowers', null::jsonb)").fetchall() == []
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="seed is -1"):
            connection.execute("select * from tensile_explain_prediction('flowers', row(1), seed => -1)")
        label = scalar(connection, "select tensile_predict_label('flowers', t) from flowers as t where id = 1")
    assert rows == of_json
    assert {row[0] for row in rows} == set(flowers.predictor.features)
    assert {row[3] for row in rows} == {label}
    assert sum(row[1] for row in rows) == pytest.approx(rows[0][5] - rows[0][4])


def predictor_metric(predictor: ModelPredictor, outputs: Any, rows: list[dict[str, Any]]) -> float:
    targets = predictor.preprocessor.targets_of(rows)
    return single_metric("r2", predictor.task, outputs, targets, predictor.preprocessor)


# --- requests to the analyst -----------------------------------------------------------------------------------


@pytest.mark.nightly
def test_explain_from_sql_enqueues_no_job(database: Database, service: Service, houses: Published) -> None:
    with database.connect(user="demo") as connection:
        before = scalar(connection, "select count(*) from tensile.jobs")
        rows = connection.execute(
            "select policy, peak_bytes, floor_bytes from tensile_explain('m', 'houses')"
        ).fetchall()
        of_query = connection.execute(
            """select policy, peak_bytes, floor_bytes
                 from tensile_explain_query('m', 'table houses', exclude => '{id}')"""
        ).fetchall()
        assert scalar(connection, "select count(*) from tensile.jobs") == before
    assert of_query == rows
    assert [policy for policy, _, _ in rows] == ["vanilla", "liveness", "tensile+"]
    assert rows[0][1] >= rows[1][1] >= rows[2][1] >= rows[2][2] > 0


@pytest.mark.parametrize(("name", "count"), [("breast_cancer", 569), ("digits", 1797)])
def test_sample_data_set_becomes_a_table_of_the_caller(
    database: Database, service: Service, name: str, count: int
) -> None:
    with database.connect(user="demo") as connection:
        assert scalar(connection, f"select tensile_load_dataset('{name}')") == count
        assert scalar(connection, f"select count(distinct id) from {name}") == count


# --- which clients are answered --------------------------------------------------------------------------------

_INTRUDER = """
import socket, sys
client = socket.socket(socket.AF_UNIX)
client.settimeout(30)
client.connect(sys.argv[1])
body = b'{"verb": "ping"}'
try:
    client.sendall(len(body).to_bytes(4, "big") + body)
    answer = client.recv(100)
except (BrokenPipeError, ConnectionResetError):
    answer = b""
print(len(answer))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a process as another system user")
def test_connection_of_another_system_user_is_refused(service: Service) -> None:
    for user in ("nobody", "root"):
        done = subprocess.run(
            ["/usr/bin/env", "python3", "-c", _INTRUDER, str(service.socket)],
            user=user, capture_output=True, text=True, check=True, cwd="/", timeout=DEADLINE_S,
        )  # fmt: skip
        assert done.stdout == "0\n"
        assert f"refused a connection of system user {user}" in service.log.read_text()


def test_system_user_of_the_database_server_is_answered(database: Database, service: Service) -> None:
    with database.connect(user="demo") as connection:
        answer = scalar(connection, "select tensile.call('ping', '{}')")
    assert service.process is not None
    assert answer["pid"] == service.process.pid


@pytest.mark.nightly
def test_services_of_two_databases_in_one_socket_directory_answer_their_own_database(
    database: Database, service: Service, houses: Published, cluster: Cluster, template: str, forks: Forks
) -> None:
    """Workers, versions and models have the same ids and names in both databases."""
    with fresh_database(cluster, template) as second, service_of(second, service.directory, forks) as other:
        with second.connect(user="demo") as connection:
            fill(connection, "houses", "target", "double precision: cos(n) + 1000")
        published = publish(second, "houses", "houses")
        assert (other.worker, published.version) == (service.worker, houses.version)
        other.run(peer_uid=None)
        assert len(list(service.directory.iterdir())) == 2
        statement = "select tensile_predict('houses', t) from houses as t where id = 5"
        for queried_database, expected in ((database, houses), (second, published)):
            with queried_database.connect(user="demo") as connection:
                assert scalar(connection, statement) == pytest.approx(
                    expected.predictor.predict_rows(rows_of(queried_database, "houses")[4:5])[0].value
                )
        # With the first service's name in the second database, the first service gets the request and refuses it.
        with second.connect() as connection:
            connection.execute("update tensile.workers set service_name = %s", (service.socket.stem,))
        with second.connect(user="demo") as connection, pytest.raises(psycopg.errors.CannotConnectNow) as caught:
            connection.execute(statement)
        assert "it belongs to another database" in (caught.value.diag.message_detail or "")


# --- start and end ---------------------------------------------------------------------------------------------


def test_session_continues_after_a_restart_of_a_killed_service(
    database: Database, service: Service, houses: Published
) -> None:
    with database.connect(user="demo") as connection:
        before = scalar(connection, "select tensile_predict('houses', t) from houses as t where id = 1")
        service.stop(signal.SIGKILL)
        assert service.socket.exists()  # a killed process cannot remove its socket
        with pytest.raises(psycopg.errors.CannotConnectNow) as caught:
            connection.execute("select tensile_predict('houses', t) from houses as t where id = 1")
        assert caught.value.diag.message_hint
        service.start()
        after = scalar(connection, "select tensile_predict('houses', t) from houses as t where id = 1")
    assert after == before


def test_stopped_service_leaves_no_socket_name_or_process(database: Database, service: Service) -> None:
    with database.connect() as connection:
        statement = "select tensile.call('ping', '{}')"
        wait_until(lambda: scalar(connection, statement)["analyst_pid"] is not None)
        answer = scalar(connection, statement)
        query = f"select service_name from tensile.workers where worker_id = {service.worker}"
        assert scalar(connection, query) == service.socket.stem
        assert service.stop() == 0
        assert scalar(connection, query) is None
    assert list(service.directory.iterdir()) == []
    wait_until(lambda: not Path(f"/proc/{answer['analyst_pid']}").exists())


@pytest.mark.nightly
def test_service_ends_with_its_parent_process(service: Service) -> None:
    assert service.stop() == 0
    command = f"import subprocess, sys; subprocess.Popen([sys.executable, '-m', {MODULE!r}]).wait()"
    with service.log.open("ab") as log:
        environment = ENVIRONMENT | service.settings
        parent = subprocess.Popen([sys.executable, "-c", command], env=environment, cwd="/", stderr=log)
    wait_until(service.socket.exists)
    parent.kill()
    parent.wait()
    wait_until(lambda: not service.socket.exists())


def test_model_is_loaded_after_a_crash_of_the_database(
    database: Database, service: Service, houses: Published
) -> None:
    database.cluster.restart(mode="immediate")
    with database.connect(user="demo") as connection:
        assert isinstance(
            scalar(connection, "select tensile_predict('houses', t) from houses as t where id = 1"), float
        )


def test_missing_environment_variable_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TENSILE_SERVICE_DIRECTORY", raising=False)
    assert program.main() == 2
    assert capsys.readouterr().err.startswith("tensile service: the service has no directory for its socket and no ")


# --- clients of its own ----------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_64_concurrent_clients_get_the_predictions_of_their_own_rows(
    database: Database, open_service: Service, houses: Published
) -> None:
    rows = rows_of(database, "houses")
    expected = [p.value for p in houses.predictor.predict_rows(rows)]
    with contextlib.ExitStack() as stack:
        # All are connected before the first asks, so that a connection that fails says why.
        clients = [stack.enter_context(open_service.client()) for _ in range(64)]

        def ask(number: int) -> list[float]:
            answers = [
                clients[number].ask("predict", version=houses.version, rows=[rows[(number + turn) % 60]])
                for turn in range(5)
            ]
            return [answer["result"]["values"][0] for answer in answers]

        with ThreadPoolExecutor(64) as pool:
            result = list(pool.map(ask, range(64)))
    for number, values in enumerate(result):
        assert values == pytest.approx([expected[(number + turn) % 60] for turn in range(5)], rel=1e-5)
    with open_service.client() as client:
        state = client.ask("ping")["result"]
    assert (state["requests"], state["rows"], state["models"]) == (320, 320, [houses.version])
    assert state["batches"] < state["requests"]


def test_error_names_an_unknown_version_and_an_unknown_data_set(open_service: Service) -> None:
    with open_service.client() as client:
        error = client.ask("predict", version=4711, rows=[1])["error"]
        assert error["sqlstate"] == "42704"
        assert "4711" in error["message"]
        error = client.ask("dataset", name="mnist")["error"]
        assert error["sqlstate"] == "42704"
        assert "digits" in error["hint"]


def test_data_set_is_sent_in_pages(open_service: Service) -> None:
    with open_service.client() as client:
        pages = [
            client.ask("dataset", name="diabetes", offset=begin, limit=200)["result"] for begin in (0, 200, 400, 600)
        ]
    assert [len(page["rows"]) for page in pages] == [200, 200, 42, 0]
    assert {page["total"] for page in pages} == {442}
    assert [row[0] for page in pages for row in page["rows"]] == list(range(1, 443))
    assert (pages[0]["primary_key"], pages[0]["target"]) == ("id", "target")


def test_clients_that_disconnect_during_a_request_disturb_no_other_client(
    database: Database, open_service: Service, houses: Published
) -> None:
    rows = rows_of(database, "houses")
    leaving: list[Client] = [open_service.client() for _ in range(8)]
    for client in leaving:
        client.request("evaluate", version=houses.version, rows=[])
        client.close()
    with open_service.client() as staying:
        assert staying.ask("predict", version=houses.version, rows=rows)["ok"]
        assert staying.ask("evaluate", version=houses.version, rows=rows)["result"]["metrics"].keys() == {
            "r2", "rmse", "mae", "mape", "median_absolute_error",
        }  # fmt: skip


# --- the benchmark ---------------------------------------------------------------------------------------------


@pytest.mark.by_day("flowers")
@pytest.mark.parametrize(("model", "numeric"), [("houses", True), ("flowers", False)])
def test_benchmark_measures_single_rows_and_batches(
    database: Database, service: Service, houses: Published, flowers: Published, model: str, numeric: bool
) -> None:
    with connect(database.dsn(user="demo"), application_name="test") as connection:
        figures = bench.measure(connection, model, calls=20, rows=100)
        assert connection.execute("select to_regclass('pg_temp.tensile_bench_rows')").fetchone() == (None,)
    assert figures["model"] == model
    assert 0 < figures["one_row_median_ms"] <= figures["one_row_p99_ms"]
    assert figures["each_rows_per_s"] > 0
    assert (figures["batch_rows_per_s"] is not None) == numeric


def test_benchmark_of_an_unknown_model_is_refused(database: Database) -> None:
    with (
        connect(database.dsn(user="demo"), application_name="test") as connection,
        pytest.raises(MissingError, match="no deployed model nobody"),
    ):
        bench.measure(connection, "nobody", calls=1, rows=1)
