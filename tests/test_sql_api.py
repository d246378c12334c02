"""The bridge's module without a database: its tables, its checks, and its talk with a service."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from indb_tensile import sql_api
from indb_tensile.errors import RequestError
from indb_tensile.job import JobSpec, Relation, Task
from indb_tensile.learning import architectures, earlystop, evaluation, features, hyperparams, layers, splits
from indb_tensile.learning.parameters import check_parameters
from tests.sql.fakes import Answer, FakeService, result

msgspec = pytest.importorskip("msgspec")

Row = Mapping[str, Any]
Json = dict[str, Any]


class FakePlpy:
    """PL/Python's module, with rows made up per statement.

    A statement that is not among `rows` gives none. `on_select_1` stands for a cancel that has arrived.
    """

    class SPIError(Exception):
        """What PL/Python raises for an error of SQL."""

        sqlstate = "57014"
        spidata = ("57014", None, "be patient")

    def __init__(self, rows: dict[str, Sequence[Row]] | None = None) -> None:
        self.rows = rows or {}
        self.notices: list[str] = []
        self.executed: list[tuple[str, tuple[object, ...]]] = []
        self.cancelled = False

    def prepare(self, query: str, types: Sequence[str]) -> str:
        return query

    def execute(self, plan: Any, arguments: Sequence[object] = ()) -> Iterable[Row]:
        if plan == "select 1" and self.cancelled:
            raise self.SPIError("canceling statement due to user request")
        self.executed.append((plan, tuple(arguments)))
        return next((rows for text, rows in self.rows.items() if text in plan), [])

    def notice(self, message: str) -> None:
        self.notices.append(message)

    def quote_ident(self, name: str) -> str:
        return f'"{name}"'


RELATION = {
    "name": "iris",
    "schema": "public",
    "kind": "r",
    "persistence": "p",
    "secured": False,
    "caller": "alice",
    "caller_enters": True,
    "caller_reads": True,
    "worker_enters": True,
    "worker_reads": True,
}
COLUMNS = [
    {"name": "id", "type": "bigint", "enumerated": False, "base": "int8", "key": True},
    {"name": "petal", "type": "real", "enumerated": False, "base": "float4", "key": False},
    {"name": "label", "type": "text", "enumerated": False, "base": "text", "key": False},
]
LOOK = {"rows": 60, "known": 60, "value": "a", "single": False, "infinite": 0}


def plpy_with(**changed: Sequence[Row]) -> FakePlpy:
    rows: dict[str, Sequence[Row]] = {
        "relation": [RELATION],
        "columns": COLUMNS,
        "look": [LOOK],
        "enqueue": [{"job_id": 7}],
    }
    rows.update(changed)
    texts = {
        "relation": sql_api._RELATION,
        "columns": sql_api._COLUMNS,
        "look": "as infinite",
        "enqueue": sql_api._ENQUEUE,
        "model": sql_api._MODEL,
        "key": sql_api._JOB_OF_KEY,
        "services": sql_api._SERVICES,
        "version": sql_api._VERSION,
    }
    return FakePlpy({texts[name]: found for name, found in rows.items()})


def error_of(answer: Json) -> tuple[str, str]:
    assert answer["ok"] is False
    return answer["error"]["sqlstate"], answer["error"]["message"]


@pytest.fixture(autouse=True)
def _fresh_session(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    session = sql_api._Service()
    monkeypatch.setattr(sql_api, "_service", session)
    monkeypatch.setattr(sql_api, "_plans", {})
    yield
    if session._socket is not None:
        session._socket.close()


def test_its_options_are_those_of_learning() -> None:
    assert sql_api.HYPERPARAMS == hyperparams.HYPERPARAMS
    assert sql_api.ARCHITECTURES == architectures.ARCHITECTURES
    assert tuple(layers.LAYERS) == sql_api.LAYERS
    assert sql_api.SPLIT == splits.SPLIT
    assert sql_api.EARLY_STOP == earlystop.EARLY_STOP
    assert {Task(task): names for task, names in sql_api.METRICS.items()} == evaluation.METRICS
    for name in sql_api.PREPROCESS:
        features.FeatureOptions.parse({name: {"missing": {}, "standardize": True, "categories": 3}[name]})


def test_its_source_compiles_as_the_bridge_compiles_it() -> None:
    with open(sql_api.__file__, encoding="utf-8") as file:  # noqa: PTH123
        source = file.read()
    namespace: dict[str, Any] = {"__name__": "tensile_sql_api"}

    exec(compile(source, "sql_api.py", "exec"), namespace)

    assert "__future__" not in source
    assert namespace["handle"](FakePlpy(), "nothing", {})["error"]["message"] == "the bridge has no such verb"


def test_an_enqueued_specification_is_a_job_spec() -> None:
    plpy = plpy_with()

    answer = sql_api.handle(plpy, "train", {"model": "m", "relation": 5, "hyperparams": {"epochs": 2, "eps": None}})

    assert answer == {"ok": True, "result": {"job": 7}}
    statement, (model, oid, schema, name, spec, priority, not_before, key) = plpy.executed[-1]
    assert statement == sql_api._ENQUEUE
    assert (model, oid, schema, name, priority, not_before, key) == ("m", 5, "public", "iris", 0, None, None)
    assert msgspec.json.decode(str(spec), type=JobSpec) == JobSpec(
        model="m",
        relation=Relation(oid=5, schema="public", name="iris"),
        target="label",
        task=Task.CLASSIFICATION,
        architecture={"type": "auto"},
        hyperparams={"epochs": 2},
        exclude=("id",),
    )


def test_a_key_that_another_session_took_meanwhile_gives_its_job() -> None:
    plpy = plpy_with(enqueue=[])
    taken: Iterator[list[Row]] = iter([[], [{"job_id": 9}]])
    found = plpy.execute

    def execute(plan: Any, arguments: Sequence[object] = ()) -> Iterable[Row]:
        return next(taken) if plan == sql_api._JOB_OF_KEY else found(plan, arguments)

    plpy.execute = execute  # type: ignore[method-assign]

    answer = sql_api.handle(plpy, "train", {"model": "m", "relation": 5, "idempotency_key": "k"})

    assert answer["result"] == {"job": 9}


def test_a_long_table_is_not_judged_by_its_first_rows() -> None:
    sorted_by_class = LOOK | {"rows": 10_000, "single": True, "known": 0}

    assert sql_api.handle(plpy_with(look=[sorted_by_class]), "train", {"model": "m", "relation": 5})["ok"]


def test_an_error_of_sql_keeps_its_parts() -> None:
    plpy = plpy_with()

    def execute(plan: Any, arguments: Sequence[object] = ()) -> Iterable[Row]:
        raise plpy.SPIError("canceling statement due to user request")

    plpy.execute = execute  # type: ignore[method-assign]

    assert sql_api.handle(plpy, "create_model", {"model": "m"})["error"] == {
        "sqlstate": "57014",
        "message": "canceling statement due to user request",
        "detail": "",
        "hint": "be patient",
    }


@pytest.mark.parametrize(
    ("value", "fits"),
    [(1, True), (0, False), (True, False), (1.0, False), ("1", False), (100_001, False), (None, True)],
)
def test_an_integer_is_one_within_its_range(value: Any, fits: bool) -> None:
    answer = sql_api.handle(plpy_with(), "train", {"model": "m", "relation": 5, "hyperparams": {"epochs": value}})

    assert answer["ok"] is fits


@pytest.mark.parametrize(
    ("options", "fits"),
    [
        ({"betas": [0.9, 0.99]}, True),
        ({"betas": [0.9]}, False),
        ({"betas": [0.9, 1]}, False),
        ({"betas": [0.9, True]}, False),
        ({"nesterov": 1}, False),
        ({"nesterov": True}, True),
        ({"learning_rate": 0}, False),
        ({"learning_rate": 1}, True),
        ([], False),
        ("epochs", False),
    ],
)
def test_options_are_refused_exactly_where_learning_refuses_them(options: Any, fits: bool) -> None:
    with pytest.raises(sql_api.RefusalError) if not fits else _nothing():
        sql_api._options("hyperparams", options, sql_api.HYPERPARAMS)
    with pytest.raises(RequestError) if not fits else _nothing():
        check_parameters("hyperparams", options, hyperparams.HYPERPARAMS)


class _nothing:  # noqa: N801 - a context like pytest.raises
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    ("text", "row"),
    [("{1,2}", [1, 2]), ("{{1,-2.5e3},{3,4}}", [[1, -2500.0], [3, 4]]), ('{"a": "{"}', {"a": "{"}), ("7", 7)],
)
def test_a_literal_is_json_or_an_array(text: str, row: Any) -> None:
    assert sql_api._row(text, unnamed=False) == row


def test_what_json_in_postgresql_cannot_hold_becomes_text() -> None:
    given = {"a": [math.nan, math.inf, -math.inf, 1.5, None], "b": True}

    stored = sql_api._storable(given)

    assert json.dumps(stored, allow_nan=False) == '{"a": ["NaN", "Infinity", "-Infinity", 1.5, null], "b": true}'


@pytest.fixture
def serve() -> Iterator[Any]:
    started: list[FakeService] = []

    def start(answer: Answer) -> tuple[FakeService, FakePlpy]:
        service = FakeService(answer)
        started.append(service)
        address = {"directory": str(service.directory), "names": [service.name]}
        version = {"version_id": 700, "target": "label", "metrics": "{}"}
        return service, plpy_with(services=[address], version=[version])

    yield start
    for service in started:
        service.close()


PREDICT = {"model": "m", "rows": [1, None, 3], "kind": "value"}


def test_a_prediction_keeps_the_places_of_nulls(serve: Any) -> None:
    service, plpy = serve(lambda request: result({"values": [row * 10 for row in request["rows"]]}))

    assert sql_api.handle(plpy, "predict", PREDICT) == {"ok": True, "result": {"values": [10, None, 30]}}
    assert service.requests == [{"verb": "predict", "version": 700, "rows": [1, 3], "kind": "value"}]


def test_a_connection_that_broke_is_opened_once_more(serve: Any) -> None:
    service, plpy = serve(lambda _: result({"values": [1, 2]}))
    sql_api.handle(plpy, "predict", PREDICT)
    service.drop_connections()

    assert sql_api.handle(plpy, "predict", PREDICT)["ok"]
    service.close()
    assert error_of(sql_api.handle(plpy, "predict", PREDICT)) == ("57P03", "no service answers")


def test_a_large_request_and_a_large_answer_arrive_whole(serve: Any) -> None:
    _, plpy = serve(lambda request: result({"values": [len(request["rows"][0]), "y" * 5_000_000]}))

    answer = sql_api.handle(plpy, "predict", {"model": "m", "rows": [["x" * 5_000_000], 2]})

    assert answer["result"] == {"values": [1, "y" * 5_000_000]}


def test_a_request_beyond_one_frame_is_refused_before_it_is_sent(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_api, "_MAX_FRAME_BYTES", 20)
    service, plpy = serve(lambda _: None)

    assert error_of(sql_api.handle(plpy, "predict", PREDICT))[0] == "54000"
    assert service.requests == []


def test_a_cancel_ends_the_wait_and_its_answer_is_never_taken_for_anothers(serve: Any) -> None:
    service, plpy = serve(lambda _: None)
    plpy.cancelled = True

    assert error_of(sql_api.handle(plpy, "predict", PREDICT)) == ("57014", "canceling statement due to user request")

    service.answer = lambda _: result({"values": [1, 2]})
    first = service.connections[0]
    assert sql_api.handle(plpy, "predict", PREDICT)["ok"]
    assert service.connections[-1] is not first
