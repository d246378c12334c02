"""Compares predictions of whole tables with a client that copies the rows out and the results back, and single calls.

    tensile bench predict [--dsn "host=… user=postgres"] [--rows 1000000] [--rounds 3] [--json]

A small MLP predicts a table of 20 columns of float8, and a small CNN a tenth as many images of 8x8. The three sides
run in turns, with the same network and one thread, and store key and value of each row in a new table. `ratio` is
the time of tensile_predict_table over the client's, and `into_ratio` that of tensile_predict_into with the wait for
its job. `over_single_calls` compares the rows per second with those of `tensile_predict`, called for each row, and
`client_over_single_calls` those of the client.
`first_row_s` is the time to the first row of a cursor. `growth_bytes` says how much more memory of its own
(RssAnon) each process has at most for four times the rows of the first table: the session and the service for
tensile_predict_table, the trainer and its two backends, which read and write, for tensile_predict_into.

The benchmark creates a database, on a server of its own unless the dsn, a superuser's, names one.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from psycopg import sql
from psycopg.types.json import Jsonb

from indb_tensile.bench.harness.processes import prediction_calls
from indb_tensile.bench.harness.processes.argument_types import whole
from indb_tensile.bench.harness.processes.bench_controller import bench_controller, trainers_of, wait_for
from indb_tensile.bench.harness.processes.bench_database import temporary_database
from indb_tensile.bench.harness.processes.own_memory import OwnMemory
from indb_tensile.bench.harness.processes.prediction_client import predict_by_copy
from indb_tensile.bench.harness.processes.process_exit import run
from indb_tensile.bench.harness.results.rows import stamped
from indb_tensile.catalog.connection import Connection, connect
from indb_tensile.catalog.queries import parse
from indb_tensile.config import MIB
from indb_tensile.errors import TensileError
from indb_tensile.learning.models.model_predictor import ModelPredictor

PURPOSE = "tensile bench predict"
_COLUMNS = tuple(f"f{number}" for number in range(20))
_FEATURES = {"bench_mlp": _COLUMNS, "bench_cnn": ("pixels",)}
_ARCHITECTURES = {
    "bench_mlp": '{"type": "mlp", "hidden": [64]}',
    "bench_cnn": '{"type": "cnn", "channels": [8], "hidden": [32]}',
}
_CALLS = 300
_EACH_ROWS = 5000
_SQL = parse(Path(__file__).with_name("predict.sql").read_text(encoding="utf-8"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each network."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(1)
    with temporary_database(options.dsn, "predict") as dsn:
        for row in measure(dsn, options.rows, options.rounds):
            print(stamped(row) if options.json else _lines(row), flush=True)


def measure(dsn: str, rows: int, rounds: int) -> list[dict[str, Any]]:
    """Return the rows of both networks. `dsn` is a superuser's, to a database with the catalog."""
    with connect(dsn, application_name=PURPOSE, callers_path=True) as connection:
        _create(connection, rows)
        with (
            _service_directory(connection) as directory,
            bench_controller(dsn, "predict", threads=1, service_directory=directory) as controller,
        ):
            predictors = {model: _trained(connection, model) for model in _FEATURES}
            figures = [
                _compare(connection, model, predictor, rows if model == "bench_mlp" else max(1, rows // 10), rounds)
                for model, predictor in predictors.items()
            ]
            figures[0] |= {"growth_bytes": _growth(connection, controller.pid)}
    return figures


@contextmanager
def _service_directory(connection: Connection) -> Iterator[str]:
    """Yield the directory of the service's sockets, which the database server can enter."""
    with TemporaryDirectory(prefix="tensile-predict-") as name:
        Path(name).chmod(0o755)
        connection.execute(_SQL["set_directory"].encode(), {"directory": Jsonb(name)})
        yield name


def _create(connection: Connection, rows: int) -> None:
    for role in ("tensile_worker", "tensile_reader"):
        connection.execute(sql.SQL(_SQL["allow_login"]).format(sql.Identifier(role)))
    connection.execute(_SQL["grant_use"].encode())
    columns = sql.SQL(", ").join(sql.SQL("random() as {}").format(sql.Identifier(name)) for name in _COLUMNS)
    connection.execute(sql.SQL(_SQL["create_rows"]).format(columns=columns, rows=sql.Literal(rows)))
    connection.execute(sql.SQL(_SQL["create_images"]).format(rows=sql.Literal(max(1, rows // 10))))
    for relation in _FEATURES:
        names = {"relation": sql.Identifier(relation), "sample": sql.Identifier(f"{relation}_sample")}
        for statement in ("create_key", "create_sample", "fill_statistics"):
            connection.execute(sql.SQL(_SQL[statement]).format(**names))
        for name in names.values():
            connection.execute(sql.SQL(_SQL["grant_table"]).format(relation=name))
    features = sql.SQL(", ").join(map(sql.Identifier, _COLUMNS))
    connection.execute(sql.SQL(_SQL["create_repeated"]).format(columns=features, rows=sql.Literal(rows)))
    connection.execute(sql.SQL(_SQL["grant_table"]).format(relation=sql.Identifier("bench_repeated")))


def _trained(connection: Connection, model: str) -> ModelPredictor:
    """Train a model for one epoch, and return its predictor for the client."""
    row = connection.execute(
        _SQL["train"].encode(),
        {"model": model, "sample": f"{model}_sample", "architecture": _ARCHITECTURES[model]},
    ).fetchone()
    assert row is not None
    _wait_for_job(connection, row[0])
    stored = connection.execute(_SQL["stored"].encode(), {"model": model}).fetchone()
    assert stored is not None
    return ModelPredictor.load(*stored)


def _wait_for_job(connection: Connection, job: int, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Wait until a job has succeeded, and call `meanwhile` again and again."""
    ended: list[Any] = []

    def has_ended() -> bool:
        meanwhile()
        ended[:] = connection.execute(_SQL["ended"].encode(), {"job": job}).fetchone() or ()
        return bool(ended)

    wait_for(has_ended, f"job {job} to end")
    if ended[0] != "succeeded":
        raise TensileError(f"job {job} {ended[0]}: {ended[1]}")


def _compare(connection: Connection, model: str, predictor: ModelPredictor, rows: int, rounds: int) -> dict[str, Any]:
    values = {"model": model, "relation": model}
    sides: Mapping[str, Callable[[], object]] = {
        "client": lambda: _client(connection, model, predictor),
        "table": lambda: connection.execute(_SQL["store_answers"].encode(), values),
        "into": lambda: connection.execute(_SQL["predict_into"].encode(), values),
    }
    calls = prediction_calls.measure(connection, model, calls=_CALLS, rows=min(rows, _EACH_ROWS))
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    differences: list[float] = []
    for number in range(rounds + 1):  # the first round is not counted
        for side, store in sides.items():
            _drop_answers(connection)
            spent_s = _seconds(store)
            if number:
                seconds[side].append(spent_s)
            elif side == "client":
                connection.execute(_SQL["keep_answers"].encode())
            else:
                differences.append(
                    _largest_difference(connection, "bench_view" if side == "into" else "bench_answers")
                )
    client_s, table_s, into_s = (median(seconds[side]) for side in sides)

    def ratio(side: str) -> float:
        pairs = zip(seconds["client"], seconds[side], strict=True)
        return round(median(spent / client for client, spent in pairs), 3)

    return {
        "model": model,
        "rows": rows,
        "rounds": rounds,
        "client_s": round(client_s, 3),
        "table_s": round(table_s, 3),
        "ratio": ratio("table"),
        "into_s": round(into_s, 3),
        "into_ratio": ratio("into"),
        "single_call_ms": calls["one_row_median_ms"],
        "each_rows_per_s": calls["each_rows_per_s"],
        "batch_rows_per_s": calls["batch_rows_per_s"],
        "table_rows_per_s": round(rows / table_s),
        "over_single_calls": round(rows / table_s / calls["each_rows_per_s"], 1),
        "client_over_single_calls": round(rows / client_s / calls["each_rows_per_s"], 1),
        "first_row_s": round(_first_row_s(connection, values), 3),
        "largest_difference": max(differences),
    }


def _largest_difference(connection: Connection, answers: str) -> float:
    """Return by how much a value differs from the client's. Refuses answers without all of the client's rows."""
    statement = sql.SQL(_SQL["largest_difference"]).format(answers=sql.Identifier(answers))
    row = connection.execute(statement).fetchone()
    assert row is not None
    difference, missing = row
    if missing:
        raise TensileError(f"{missing} rows of the client have no answer in {answers}")
    return float(difference)


def _drop_answers(connection: Connection) -> None:
    """Drop the table of the sides `client` and `table`, and view and table of `into`."""
    for statement in ("drop_answers", "drop_view", "drop_predictions"):
        connection.execute(_SQL[statement].encode())


def _client(connection: Connection, model: str, predictor: ModelPredictor) -> None:
    with connection.transaction():
        connection.execute(_SQL["create_answers"].encode())
        read = sql.SQL(_SQL["read_rows"]).format(
            columns=sql.SQL(", ").join(map(sql.Identifier, ("id", *_FEATURES[model]))),
            relation=sql.Identifier(model),
        )
        predict_by_copy(connection, predictor, read, _SQL["write_answers"], _FEATURES[model])


def _first_row_s(connection: Connection, values: Mapping[str, str]) -> float:
    with connection.transaction():
        connection.execute(_SQL["declare_rows"].encode(), values)
        return _seconds(lambda: connection.execute(b"fetch bench_rows").fetchone())


def _growth(connection: Connection, controller: int) -> dict[str, int]:
    """Return by how many bytes the peak of each process grows from the table to four times its rows."""
    service = connection.execute(_SQL["service"].encode()).fetchone()
    assert service is not None
    pids = {"session": connection.info.backend_pid, "service": service[0]}
    peaks = []
    for relation in ("bench_mlp", "bench_repeated"):
        with OwnMemory(pids) as memory:
            values = {"model": "bench_mlp", "relation": relation}
            connection.execute(_SQL["count_rows"].encode(), values)
        peaks.append(memory.peaks_bytes | _peaks_of_job(connection, controller, values))
    return {name: peaks[1].get(name, 0) - size_bytes for name, size_bytes in peaks[0].items()}


def _peaks_of_job(connection: Connection, controller: int, values: Mapping[str, str]) -> dict[str, int]:
    """Return the peaks of the trainer that predicts the relation into a table, and of its backends.

    The trainers that wait for a job are watched too, and are smaller.
    """
    _drop_answers(connection)
    row = connection.execute(_SQL["enqueue_prediction"].encode(), values).fetchone()
    assert row is not None
    with OwnMemory({}) as memory:

        def watch() -> None:
            for pid in trainers_of(controller):
                memory.add("trainer", pid)
            for name, pid in connection.execute(_SQL["backends"].encode(), {"job": row[0]}):
                memory.add(name, pid)

        _wait_for_job(connection, row[0], watch)
    _drop_answers(connection)
    return memory.peaks_bytes


def _seconds(action: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    action()
    return time.perf_counter() - started_s


def _lines(row: dict[str, Any]) -> str:
    growth = row.get("growth_bytes", {})
    grown = ", ".join(f"{name} {size_bytes / MIB:.0f} MB" for name, size_bytes in growth.items())
    return (
        f"{row['model']}: {row['rows']} rows in {row['table_s']} s, "
        f"{row['ratio']} of the client's {row['client_s']} s; by tensile_predict_into in {row['into_s']} s, "
        f"{row['into_ratio']} of it; "
        f"{row['over_single_calls']} times the rate of single calls, of {row['single_call_ms']} ms each "
        f"(the client: {row['client_over_single_calls']} times); "
        f"first row after {row['first_row_s']} s" + (f"; growth for four times the rows: {grown}" if grown else "")
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dsn", default="", help="a superuser's connection to any database of the server")
    parser.add_argument("--rows", type=whole(2000), default=1_000_000)
    parser.add_argument("--rounds", type=whole(), default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    return parser


if __name__ == "__main__":
    run(main)
