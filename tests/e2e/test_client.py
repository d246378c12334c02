"""Train, search and predict from Python, on a real controller."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pandas
import polars
import psycopg
import pyarrow
import pytest
from sqlalchemy import MetaData, Table, create_engine, func, select, text
from sqlalchemy.ext.asyncio import create_async_engine

from indb_tensile.client import AsyncTensile, Tensile
from indb_tensile.errors import (
    CancelledJobError,
    DataError,
    MissingColumnError,
    MissingError,
    PrivilegeError,
    RequestError,
    WaitTimeoutError,
)
from indb_tensile.job import JobState
from tests.conftest import Database
from tests.e2e.conftest import Service

pytestmark = pytest.mark.postgres

HOSTILE = 'of "O\'Brien"; drop table x; -- %s 100% \u00e4\U0001f40d.y'
SMALL: dict[str, Any] = {"type": "mlp", "hidden": [8]}
SHORT: dict[str, Any] = {"epochs": 2, "batch_size": 64, "seed": 3}
LONG: dict[str, Any] = {"epochs": 100_000, "batch_size": 4}


@pytest.fixture(scope="module")
def client(running: Service) -> Iterator[Tensile]:
    """A client of an ordinary user, with a trained model `spoken`."""
    with Tensile(running.database.dsn("demo")) as tensile:
        job = tensile.train("spoken", "breast_cancer", target="target", architecture=SMALL, hyperparams=SHORT)
        assert job.wait(60).version == 1
        yield tensile


def reflected(database: Database, name: str) -> Table:
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(database.dsn("demo")))
    table = Table(name, MetaData(), autoload_with=engine)
    engine.dispose()
    return table


def test_job_tells_its_state_metrics_history_log_and_report(client: Tensile) -> None:
    number = int(client.versions("spoken")[0]["job"])
    job = client.job(number)
    assert (job.state, job.version) == (JobState.SUCCEEDED, 1)
    history = job.history()
    assert [epoch["epoch"] for epoch in history] == [1, 2]
    assert job.metrics == {name: value for name, value in history[-1].items() if name != "epoch"}
    assert [epoch["loss"] for epoch in client.history("spoken")] == [epoch["loss"] for epoch in history]
    assert [event["kind"] for event in job.log()][-1] == "succeeded"
    assert {fact["section"] for fact in job.report()} >= {"rows", "target"}
    assert f">job {number} spoken: succeeded<" in job._repr_html_()
    with pytest.raises(MissingError, match="there is no job 0"):
        client.job(0)
    with pytest.raises(RequestError, match=f"job {number} is not a search"):
        job.trials()


def test_predictions_of_a_name_a_table_a_select_and_frames_agree(client: Tensile, running: Service) -> None:
    table = reflected(running.database, "breast_cancer")
    by_name = {row.key["id"]: row.prediction for row in client.predict("spoken", "breast_cancer")}
    by_table = {row.key["id"]: row.prediction for row in client.predict("spoken", table)}
    chosen = select(table).where(table.c.target == "malignant").order_by(table.c.id)
    by_select = {row.key["id"]: row.prediction for row in client.predict("spoken", chosen)}
    assert by_table == by_name
    assert by_select == {number: by_name[number] for number in by_select}
    with psycopg.connect(running.database.dsn("demo")) as connection:
        rows = connection.execute("select * from breast_cancer order by id").fetchall()
    frame = pandas.DataFrame(rows, columns=[column.name for column in table.columns])
    expected = [by_name[number] for number in frame["id"]]
    shuffled = frame.sample(frac=1.0, random_state=1)
    answered = client.predict("spoken", shuffled, probabilities=True)
    assert list(answered.index) == list(shuffled.index)
    assert answered["prediction"].sort_index().tolist() == expected
    assert list(answered.columns) == ["prediction", "probability_benign", "probability_malignant"]
    assert client.predict("spoken", polars.DataFrame(frame.to_dict("list")))["prediction"].to_list() == expected
    arrow = client.predict("spoken", pyarrow.Table.from_pydict(frame.to_dict("list")))
    assert arrow.column("prediction").to_pylist() == expected
    assert client.predict("spoken", "breast_cancer", frame="polars").sort("id")["prediction"].to_list() == expected
    shares = client.predict_proba("spoken", shuffled)
    assert (shares["benign"] + shares["malignant"]).round(5).eq(1).all()


@pytest.mark.nightly
def test_figures_and_deployments_are_those_of_the_database(client: Tensile, running: Service) -> None:
    table = reflected(running.database, "breast_cancer")
    metrics = client.evaluate("spoken", select(table))
    # The rows come in batches of other sizes, which may change the last digits of a prediction.
    assert metrics == pytest.approx(client.evaluate("spoken", "breast_cancer"), rel=1e-5)
    confusion = client.confusion("spoken", table)
    assert sum(cell["rows"] for cell in confusion) == 569
    assert client.roc("spoken", table)[0]["class"] == "malignant"
    assert sum(bin_["rows"] for bin_ in client.calibration("spoken", table, bins=5)) == 569
    assert len(client.importance("spoken", table, repeats=1)) == 30
    job = client.train("spoken", table, deploy="never", init_from="spoken").wait(60)
    assert client.deploy("spoken", "best", reason="tried") in (1, job.version)
    assert client.deploy("spoken", 2) == 2
    assert client.rollback("spoken") == 1
    assert next(row for row in client.models() if row["model"] == "spoken")["versions"] == 2


@pytest.mark.nightly
def test_rows_of_selects_and_frames_train_as_those_of_a_table(client: Tensile, running: Service) -> None:
    table = reflected(running.database, "breast_cancer")
    kept = select(table).where(table.c.mean_radius > 12.5, table.c.target.in_(["benign", "malignant"]))
    options: dict[str, Any] = {"target": "target", "exclude": ["id"], "architecture": SMALL, "hyperparams": SHORT}
    of_select = client.train("of_select", kept, **options)
    with psycopg.connect(running.database.dsn("demo")) as connection:
        rows = connection.execute("select * from breast_cancer where mean_radius > 12.5").fetchall()
    frame = polars.DataFrame(rows, schema=[column.name for column in table.columns], orient="row")
    of_frame = client.train("of_frame", frame, **options)
    assert of_select.wait(60).history() == of_frame.wait(60).history()
    assert client.versions("of_frame")[0]["rows"] == len(rows)
    assert any('task is "classification"' in notice or "classification" in notice for notice in of_frame.notices)


def test_hostile_names_and_values_are_only_names_and_values(client: Tensile, running: Service) -> None:
    frame = pandas.DataFrame(
        {HOSTILE[:20]: ["a'b", "%s", None, '"', "\\"] * 8, "50%": range(40), "y": [0.5, 2.0] * 20}
    )
    job = client.train(HOSTILE, frame, target="y", architecture=SMALL, hyperparams={"epochs": 1}).wait(60)
    assert [row["model"] for row in client.models() if row["model"] == HOSTILE] == [HOSTILE]
    assert len(client.predict(HOSTILE, frame)) == 40
    assert HOSTILE in running.value("select model_name from tensile.jobs where job_id = %s", job.number)
    with psycopg.connect(running.database.dsn("demo"), autocommit=True) as demo:
        demo.execute("""create table "Odd "".%s; name" (id int primary key, "a 'b' %" text, b int, y float8)""")
        rows = """select i, 'x''%', i % 7, i from generate_series(1, 30) as i"""
        demo.execute(f"""insert into "Odd "".%s; name" {rows}""".encode())
        demo.execute("""grant select on "Odd "".%s; name" to tensile_reader""")
    odd = reflected(running.database, 'Odd ".%s; name')
    filtered = select(odd).where(odd.c["a 'b' %"] == "x'%", odd.c.id < 25)
    client.train("odd", filtered, target="y", exclude=["id"], architecture=SMALL, hyperparams={"epochs": 1}).wait(60)
    assert len(list(client.predict("odd", filtered))) == 24
    assert len(list(client.predict("odd", odd))) == 30
    client.drop("odd")
    with pytest.raises(MissingError, match='there is no model "odd"'):
        client.predict("odd", odd, frame="pandas")


def test_errors_have_sentence_detail_and_hint(client: Tensile) -> None:
    with pytest.raises(MissingError) as missing:
        client.train("refused", "no_such_table")
    assert missing.value.message == 'relation "no_such_table" does not exist'
    with pytest.raises(MissingColumnError) as column:
        client.train("refused", "digits", target="labl")
    assert (column.value.sqlstate, bool(column.value.hint or column.value.detail)) == ("42703", True)
    with pytest.raises(RequestError) as option:
        client.train("refused", "digits", hyperparam={})  # type: ignore[call-arg]
    assert (option.value.message, option.value.hint) == (
        'train has no argument "hyperparam"',
        'Did you mean "hyperparams"?',
    )
    with pytest.raises(RequestError, match="priority is 'high', of type str"):
        client.train("refused", "digits", priority="high")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="features is the text 'pixels'"):
        client.train("refused", "digits", features="pixels")
    with pytest.raises(RequestError, match="the job is 'refused', of type str"):
        client.job("refused")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="the relation is of type dict"):
        client.train("refused", {"a": [1]})
    with pytest.raises(DataError, match="the frame has no rows"):
        client.train("refused", pandas.DataFrame({"a": [], "y": []}), target="y")
    with pytest.raises(DataError, match="values of several types"):
        client.train("refused", pandas.DataFrame({"a": ["x", 1], "y": [0, 1]}), target="y")
    with pytest.raises(RequestError, match="a column named 7, of type int"):
        client.train("refused", pandas.DataFrame({7: [1.0], "y": [0]}), target="y")
    rows = {"day": range(9), "x": [0.5, 1.0, 2.0] * 3, "y": ["no"] * 8 + ["yes"]}  # the training rows have one class
    failed = client.train("refused", pandas.DataFrame(rows), target="y", split={"last": 0.2, "by": "day"})
    with pytest.raises(DataError, match=f"job {failed.number} failed: "):
        failed.wait(60)


def test_a_second_user_neither_sees_nor_uses_what_is_not_granted(client: Tensile, running: Service) -> None:
    with Tensile(running.database.dsn("bob")) as bob:
        number = int(client.versions("spoken")[-1]["job"])
        with pytest.raises(MissingError, match=f"there is no job {number}"):
            bob.job(number)
        with pytest.raises(MissingError, match='there is no model "spoken"'):
            list(bob.predict("spoken", "digits"))
        with pytest.raises(PrivilegeError):
            bob.train("spoken", pandas.DataFrame({"a": [1.0, 2.0, 3.0], "y": [0.5, 1, 2]}), target="y")
        client.grant("spoken", "bob")
        columns = client.versions("spoken")[-1]["features"]
        assert len(bob.predict("spoken", pandas.DataFrame({name: [1.0, 2.0] for name in columns}))) == 2
        with pytest.raises(PrivilegeError, match='model "spoken" belongs to another role'):
            bob.deploy("spoken", 1)
        client.revoke("spoken", "bob")


def test_a_million_rows_never_enter_memory_and_an_early_end_returns_the_connection(
    client: Tensile, running: Service
) -> None:
    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(running.database.dsn("demo")),
        pool_size=1,
        max_overflow=0,
    )
    with engine.connect() as connection:
        connection.execute(
            text("create temporary table many as select b.* from breast_cancer as b, generate_series(1, 20)")
        )
        own = Tensile(connection)
        with own.predict("spoken", "many", keys=["id"]) as rows:
            assert next(rows).label in ("benign", "malignant")
            assert connection.execute(text("select count(*) from pg_cursors where not is_holdable")).scalar_one() >= 1
        assert list(rows) == []
        connection.rollback()
    rows = Tensile(engine).predict("spoken", "breast_cancer")
    next(rows)
    assert engine.pool.checkedout() == 1  # type: ignore[attr-defined]
    rows.close()
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    engine.dispose()


def test_a_connection_of_the_caller_is_committed_by_the_caller_alone(client: Tensile, running: Service) -> None:
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(running.database.dsn("demo")))
    with engine.connect() as connection:
        own = Tensile(connection)
        job = own.train("uncommitted", "breast_cancer", target="target")
        with pytest.raises(RequestError, match=f"job {job.number} cannot start before this transaction commits"):
            job.wait()
        connection.rollback()
    engine.dispose()
    with pytest.raises(MissingError):
        client.job(job.number)


@pytest.mark.nightly
def test_waiting_outlasts_a_dropped_connection(client: Tensile, running: Service) -> None:
    job = client.train("waited", "digits", target="label", hyperparams=LONG)
    running.until(lambda: job.state is JobState.RUNNING, "the job to run")
    ends: list[Exception] = []

    def wait() -> None:
        try:
            job.wait()
        except CancelledJobError as error:
            ends.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    for _ in range(3):
        running.connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where usename = 'demo' and application_name = 'tensile client'"
        )
    assert job.cancel() is True
    waiting.join(60)
    assert [str(error) for error in ends] == [f"job {job.number} was cancelled"]
    assert job.state is JobState.CANCELLED
    assert job.cancel() is False
    with pytest.raises(CancelledJobError, match=f"job {job.number} was cancelled"):
        job.progress()


@pytest.mark.nightly
def test_ctrl_c_cancels_the_awaited_job_and_a_display_leaves_it(client: Tensile, running: Service) -> None:
    job = client.train("interrupted", "digits", target="label", hyperparams=LONG)
    with pytest.raises(WaitTimeoutError, match=f"job {job.number} has not ended within 0 s"):
        job.wait(0)

    def interrupt() -> None:
        running.until(lambda: running.state(job.number) == "running", "the job to run")
        running.until(main_thread_waits, "the wait to begin")
        os.kill(os.getpid(), signal.SIGINT)

    # A suite in the background of a shell ignores SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for wait in (job.progress, job.wait):
            threading.Thread(target=interrupt).start()
            with pytest.raises(KeyboardInterrupt):
                wait()
    finally:
        signal.signal(signal.SIGINT, before)
    assert running.until_ended(job.number) == ["cancelled"]
    assert job.retry().cancel() is True


def main_thread_waits() -> bool:
    """Return whether the main thread has looked at a job that it waits for."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_code.co_filename.endswith("sync_job.py") and "record" in frame.f_locals:
            return True
        frame = frame.f_back
    return False


def test_pause_resume_and_priority_reach_the_job(client: Tensile) -> None:
    job = client.train("paused", "digits", target="label", hyperparams=LONG)
    job.pause()
    assert job.record["paused"] is True
    job.resume()
    job.set_priority(-3)
    assert (job.record["paused"], job.record["priority"]) == (False, -3)
    job.cancel()


@pytest.mark.nightly
def test_a_search_and_a_stored_prediction_are_jobs(client: Tensile, running: Service) -> None:
    frame = pandas.DataFrame({"a": [0.1 * i for i in range(60)], "y": [i % 2 == 0 for i in range(60)]})
    search = client.search(
        "searched",
        frame,
        target="y",
        architecture=SMALL,
        hyperparams={"learning_rate": {"choices": [0.01, 0.1]}, "epochs": 1},
        trials=2,
        sampler="grid",
        prune="none",
    )
    assert search.wait(120).state is JobState.SUCCEEDED
    assert [trial["state"] for trial in search.trials()] == ["succeeded", "succeeded"]
    client.predict_into("spoken", "breast_cancer", "spoken_answers", version=1).wait(60)
    assert running.value("select count(*) from spoken_answers") == 569


@pytest.mark.nightly
def test_an_asynchronous_client_does_the_same(running: Service) -> None:
    async def use() -> None:
        async with AsyncTensile(running.database.dsn("demo")) as tensile:
            frame = pandas.DataFrame({"a": [0.1 * i for i in range(60)], "y": ["%s", "b"] * 30})
            job = await tensile.train(
                "async", frame, target="y", architecture=SMALL, hyperparams={"epochs": 1}, priority=2
            )
            assert await (await job.wait(60)).state() is JobState.SUCCEEDED
            assert (await job.history())[0].keys() >= {"epoch", "loss"}
            assert (await tensile.predict("async", frame))["prediction"].isin(["%s", "b"]).all()
            rows = await tensile.predict("async", frame_query())
            async with rows:
                assert (await anext(rows)).label in ("%s", "b")
            assert len([row async for row in await tensile.predict_proba("async", frame_query())]) == 40
            with pytest.raises(MissingError, match='there is no model "nothing"'):
                await tensile.evaluate("nothing")
            long = await tensile.train("async", "digits", target="label", hyperparams=LONG, deploy="never")
            waiting = asyncio.create_task(long.wait())
            while await long.state() is JobState.QUEUED:
                await asyncio.sleep(0.02)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            with pytest.raises(CancelledJobError):
                await long.wait(60)

    def frame_query() -> Any:
        numbers = func.generate_series(1, 40).table_valued("i").render_derived()
        return select((numbers.c.i * Decimal("0.1")).label("a"), numbers.c.i.label("i"))

    asyncio.run(use())


def test_an_engine_of_another_driver_is_refused(running: Service) -> None:
    with pytest.raises(RequestError, match="the engine uses postgresql with the driver psycopg2"):
        Tensile(create_engine("postgresql+psycopg2://"))
    with pytest.raises(RequestError, match="the engine uses postgresql with the driver asyncpg"):
        AsyncTensile(create_async_engine("postgresql+asyncpg://"))
    with pytest.raises(RequestError, match="the database is of type int"):
        Tensile(7)  # type: ignore[arg-type]
