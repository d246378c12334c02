"""The whole service beside a real database: asked from SQL, and by clients of its own."""

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from indb_tensile.bench.commands import predict as bench
from indb_tensile.catalog.connection import connect
from indb_tensile.cluster import Cluster
from indb_tensile.errors import MissingError
from tests.conftest import Database, fresh_database
from worker import service as program

from .conftest import ENVIRONMENT, MODULE, Published, Service, fill, publish, service_of
from .fakes import DEADLINE_S, Client, eventually

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def houses(database: Database) -> Published:
    """A model of a number, over columns a and b."""
    with database.connect(user="demo") as connection:
        fill(connection, "houses", "target", "double precision: cos(n)")
    return publish(database, "houses", "houses")


@pytest.fixture(scope="module")
def flowers(database: Database) -> Published:
    """A model of a text label."""
    with database.connect(user="demo") as connection:
        fill(connection, "flowers", "label", "text: (array['red', 'blue'])[n % 2 + 1]")
    return publish(database, "flowers", "flowers")


def rows_of(database: Database, table: str) -> list[dict[str, Any]]:
    with database.connect() as connection:
        return [row for (row,) in connection.execute(f"select to_jsonb(t) from {table} as t order by id")]


def one(connection: psycopg.Connection, statement: str) -> Any:
    found = connection.execute(statement).fetchone()
    assert found is not None
    return found[0]


# --- predictions -----------------------------------------------------------------------------------------------


def test_a_row_an_array_and_json_are_predicted_alike_from_sql(
    database: Database, service: Service, houses: Published
) -> None:
    row = rows_of(database, "houses")[4]
    (expected,) = houses.predictor.predict_rows([row])
    with database.connect(user="demo") as connection:
        of_row = one(connection, "select tensile_predict('houses', t) from houses as t where id = 5")
        of_json = one(
            connection, f"""select tensile_predict('houses', '{{"a": {row["a"]}, "b": "{row["b"]}"}}'::jsonb)"""
        )
    assert of_row == pytest.approx(expected.value)
    assert of_json == of_row


def test_predictions_of_many_rows_are_those_of_each_row(
    database: Database, service: Service, houses: Published
) -> None:
    expected = [p.value for p in houses.predictor.predict_rows(rows_of(database, "houses"))]
    with database.connect(user="demo") as connection:
        singly = connection.execute("select tensile_predict('houses', t) from houses as t order by id").fetchall()
        at_once = one(connection, "select tensile_predict_batch('houses', array_agg(t order by id)) from houses as t")
    assert [value for (value,) in singly] == pytest.approx(expected)
    assert at_once == pytest.approx(expected)


def test_a_text_label_is_given_as_text_with_probabilities_and_outputs(
    database: Database, service: Service, flowers: Published
) -> None:
    (expected,) = flowers.predictor.predict_rows(rows_of(database, "flowers")[:1])
    with database.connect(user="demo") as connection:
        label = one(connection, "select tensile_predict_label('flowers', t) from flowers as t where id = 1")
        chances = connection.execute(
            "select p.* from flowers as t, tensile_predict_proba('flowers', t) as p where id = 1"
        ).fetchall()
        outputs = one(connection, "select tensile_predict_vector('flowers', t) from flowers as t where id = 1")
    assert label == expected.label
    assert dict(chances) == pytest.approx(dict(zip(flowers.predictor.labels, expected.probabilities, strict=True)))
    assert outputs == pytest.approx(list(expected.vector))


def test_a_number_asked_of_a_text_label_is_refused_with_the_function_to_use(
    database: Database, service: Service, flowers: Published
) -> None:
    with (
        database.connect(user="demo") as connection,
        pytest.raises(psycopg.errors.InvalidParameterValue) as caught,
    ):
        connection.execute("select tensile_predict('flowers', t) from flowers as t")
    assert caught.value.diag.message_primary == 'the model predicts "label", a text label and not a number'
    assert "tensile_predict_label" in (caught.value.diag.message_hint or "")


def test_a_row_without_a_feature_is_refused_by_the_columns_name(
    database: Database, service: Service, houses: Published
) -> None:
    with database.connect(user="demo") as connection:
        with pytest.raises(psycopg.Error, match="the row has no column b"):
            connection.execute("""select tensile_predict('houses', '{"a": 1}'::jsonb)""")
        with pytest.raises(psycopg.Error, match=r'column "a": .* is not a number'):
            connection.execute("""select tensile_predict('houses', '{"a": "much", "b": "x"}'::jsonb)""")


def test_an_evaluation_from_sql_gives_the_models_metrics(
    database: Database, service: Service, flowers: Published
) -> None:
    expected = flowers.predictor.evaluate_rows(rows_of(database, "flowers"))
    with database.connect(user="demo") as connection:
        found: dict[str, float] = dict(
            connection.execute("select * from tensile_evaluate('flowers', 'flowers')").fetchall()
        )
    assert found == pytest.approx(expected)
    assert "accuracy" in found


# --- what the analyst does -------------------------------------------------------------------------------------


def test_a_training_is_explained_from_sql_without_a_job(
    database: Database, service: Service, houses: Published
) -> None:
    with database.connect(user="demo") as connection:
        before = one(connection, "select count(*) from tensile.jobs")
        rows = connection.execute(
            "select policy, peak_bytes, floor_bytes from tensile_explain('m', 'houses')"
        ).fetchall()
        assert one(connection, "select count(*) from tensile.jobs") == before
    assert [policy for policy, _, _ in rows] == ["vanilla", "liveness", "tensile+"]
    assert rows[0][1] >= rows[1][1] >= rows[2][1] >= rows[2][2] > 0


@pytest.mark.parametrize(("name", "count"), [("breast_cancer", 569), ("digits", 1797)])
def test_a_sample_data_set_becomes_a_table_of_the_callers(
    database: Database, service: Service, name: str, count: int
) -> None:
    with database.connect(user="demo") as connection:
        assert one(connection, f"select tensile_load_dataset('{name}')") == count
        assert one(connection, f"select count(distinct id) from {name}") == count


# --- who is answered -------------------------------------------------------------------------------------------

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
def test_another_system_users_connection_is_refused(service: Service) -> None:
    for user in ("nobody", "root"):
        done = subprocess.run(
            ["/usr/bin/env", "python3", "-c", _INTRUDER, str(service.socket)],
            user=user, capture_output=True, text=True, check=True, cwd="/", timeout=DEADLINE_S,
        )  # fmt: skip
        assert done.stdout == "0\n"
        assert f"refused a connection of system user {user}" in service.log.read_text()


def test_the_database_servers_own_user_is_answered(database: Database, service: Service) -> None:
    with database.connect(user="demo") as connection:
        told = one(connection, "select tensile.call('ping', '{}')")
    assert service.process is not None
    assert told["pid"] == service.process.pid


def test_two_databases_that_share_a_socket_directory_never_answer_for_each_other(
    database: Database, service: Service, houses: Published, cluster: Cluster, template: str
) -> None:
    """Workers, versions and models have the same numbers and names in both."""
    with fresh_database(cluster, template) as second, service_of(second, service.directory) as other:
        with second.connect(user="demo") as connection:
            fill(connection, "houses", "target", "double precision: cos(n) + 1000")
        published = publish(second, "houses", "houses")
        assert (other.worker, published.version) == (service.worker, houses.version)
        other.run(peer_uid=None)
        assert len(list(service.directory.iterdir())) == 2
        asked = "select tensile_predict('houses', t) from houses as t where id = 5"
        for place, expected in ((database, houses), (second, published)):
            with place.connect(user="demo") as connection:
                assert one(connection, asked) == pytest.approx(
                    expected.predictor.predict_rows(rows_of(place, "houses")[4:5])[0].value
                )
        # A name that is registered in the wrong database leads to a service that refuses.
        with second.connect() as connection:
            connection.execute("update tensile.workers set service_name = %s", (service.socket.stem,))
        with second.connect(user="demo") as connection, pytest.raises(psycopg.errors.CannotConnectNow) as caught:
            connection.execute(asked)
        assert "it belongs to another database" in (caught.value.diag.message_detail or "")


# --- coming and going ------------------------------------------------------------------------------------------


def test_a_session_goes_on_when_the_service_was_killed_and_started_again(
    database: Database, service: Service, houses: Published
) -> None:
    with database.connect(user="demo") as connection:
        before = one(connection, "select tensile_predict('houses', t) from houses as t where id = 1")
        service.stop(signal.SIGKILL)
        assert service.socket.exists()  # nobody was there to remove it
        with pytest.raises(psycopg.errors.CannotConnectNow) as caught:
            connection.execute("select tensile_predict('houses', t) from houses as t where id = 1")
        assert caught.value.diag.message_hint
        service.start()
        after = one(connection, "select tensile_predict('houses', t) from houses as t where id = 1")
    assert after == before


def test_told_to_stop_it_leaves_nothing(database: Database, service: Service) -> None:
    with database.connect() as connection:
        asked = "select tensile.call('ping', '{}')"
        eventually(lambda: one(connection, asked)["analyst_pid"] is not None)
        told = one(connection, asked)
        named = f"select service_name from tensile.workers where worker_id = {service.worker}"
        assert one(connection, named) == service.socket.stem
        assert service.stop() == 0
        assert one(connection, named) is None
    assert list(service.directory.iterdir()) == []
    eventually(lambda: not Path(f"/proc/{told['analyst_pid']}").exists())


def test_it_ends_with_the_process_that_started_it(service: Service) -> None:
    assert service.stop() == 0
    command = f"import subprocess, sys; subprocess.Popen([sys.executable, '-m', {MODULE!r}]).wait()"
    with service.log.open("ab") as log:
        environment = ENVIRONMENT | service.settings
        parent = subprocess.Popen([sys.executable, "-c", command], env=environment, cwd="/", stderr=log)
    eventually(service.socket.exists)
    parent.kill()
    parent.wait()
    eventually(lambda: not service.socket.exists())


def test_a_model_is_loaded_after_the_database_has_crashed_and_come_back(
    database: Database, service: Service, houses: Published
) -> None:
    database.cluster.restart(mode="immediate")
    with database.connect(user="demo") as connection:
        assert isinstance(one(connection, "select tensile_predict('houses', t) from houses as t where id = 1"), float)


def test_where_the_environment_is_incomplete_it_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TENSILE_SERVICE_DIRECTORY", raising=False)
    assert program.main() == 2
    assert capsys.readouterr().err.startswith("tensile service: the service has no directory for its socket\n  Set ")


# --- clients of its own ----------------------------------------------------------------------------------------


def test_sixty_four_clients_at_once_get_their_own_rows_back(
    database: Database, open_service: Service, houses: Published
) -> None:
    rows = rows_of(database, "houses")
    expected = [p.value for p in houses.predictor.predict_rows(rows)]
    barrier = threading.Barrier(64)

    def ask(number: int) -> list[float]:
        with open_service.client() as client:
            barrier.wait(DEADLINE_S)
            answers = [
                client.ask("predict", version=houses.version, rows=[rows[(number + turn) % 60]]) for turn in range(5)
            ]
        return [answer["result"]["values"][0] for answer in answers]

    with ThreadPoolExecutor(64) as pool:
        found = list(pool.map(ask, range(64)))
    for number, values in enumerate(found):
        assert values == pytest.approx([expected[(number + turn) % 60] for turn in range(5)])
    with open_service.client() as client:
        state = client.ask("ping")["result"]
    assert (state["requests"], state["rows"], state["models"]) == (320, 320, [houses.version])
    assert state["batches"] < state["requests"]


def test_an_unknown_version_and_an_unknown_data_set_are_named(open_service: Service) -> None:
    with open_service.client() as client:
        error = client.ask("predict", version=4711, rows=[1])["error"]
        assert error["sqlstate"] == "42704"
        assert "4711" in error["message"]
        error = client.ask("dataset", name="mnist")["error"]
        assert error["sqlstate"] == "42704"
        assert "digits" in error["hint"]


def test_a_data_set_comes_in_pages(open_service: Service) -> None:
    with open_service.client() as client:
        pages = [
            client.ask("dataset", name="diabetes", offset=begin, limit=200)["result"] for begin in (0, 200, 400, 600)
        ]
    assert [len(page["rows"]) for page in pages] == [200, 200, 42, 0]
    assert {page["total"] for page in pages} == {442}
    assert [row[0] for page in pages for row in page["rows"]] == list(range(1, 443))
    assert (pages[0]["primary_key"], pages[0]["target"]) == ("id", "target")


def test_a_client_that_leaves_in_the_middle_of_a_request_disturbs_nobody(
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
            "r2", "rmse", "mae",
        }  # fmt: skip


# --- the benchmark ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "numeric"), [("houses", True), ("flowers", False)])
def test_the_benchmark_measures_single_rows_and_bulk(
    database: Database, service: Service, houses: Published, flowers: Published, model: str, numeric: bool
) -> None:
    with connect(database.dsn(user="demo"), application_name="test") as connection:
        figures = bench.measure(connection, model, calls=20, rows=100)
        assert connection.execute("select to_regclass('pg_temp.tensile_bench_rows')").fetchone() == (None,)
    assert figures["model"] == model
    assert 0 < figures["one_row_median_ms"] <= figures["one_row_p99_ms"]
    assert figures["each_rows_per_s"] > 0
    assert (figures["batch_rows_per_s"] is not None) == numeric


def test_the_benchmark_says_when_there_is_no_model(database: Database) -> None:
    with (
        connect(database.dsn(user="demo"), application_name="test") as connection,
        pytest.raises(MissingError, match="no deployed model nobody"),
    ):
        bench.measure(connection, "nobody", calls=1, rows=1)
