"""Check that the drivers of users enqueue trainings, predict, and receive errors with all their fields.

JDBC and Go are imitated by what they send: text with the type varchar or without a type, statements that are prepared
and described, and results in binary form.
"""

import asyncio
import struct
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Protocol

import asyncpg
import pandas
import psycopg
import psycopg2
import pytest
import sqlalchemy
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import ExecStatus

from tests.conftest import Database

from .conftest import Connection, Refused, Serve, refused, value
from .fakes import echo, result

pytestmark = [pytest.mark.postgres, pytest.mark.usefixtures("published")]


class Driver(Protocol):
    """A session of one driver. `$1` stands for the first argument of a statement."""

    def value(self, statement: str, *arguments: Any) -> Any:
        """Return the first column of the first row."""
        ...

    def refused(self, statement: str, *arguments: Any) -> Refused:
        """Return the error that the statement raises."""
        ...


class _Psycopg:
    def __init__(self, database: Database) -> None:
        self.connection = psycopg.connect(database.dsn("alice"), autocommit=True)

    def value(self, statement: str, *arguments: Any) -> Any:
        return value(self.connection, _formatted(statement), *arguments)

    def refused(self, statement: str, *arguments: Any) -> Refused:
        with pytest.raises(psycopg.Error) as caught:
            self.value(statement, *arguments)
        return _from_diagnostics(caught.value.diag)

    def close(self) -> None:
        self.connection.close()


class _Psycopg2:
    def __init__(self, database: Database) -> None:
        self.connection = psycopg2.connect(database.dsn("alice"))
        self.connection.autocommit = True

    def value(self, statement: str, *arguments: Any) -> Any:
        with self.connection.cursor() as cursor:
            cursor.execute(_formatted(statement), arguments)
            return cursor.fetchone()[0]

    def refused(self, statement: str, *arguments: Any) -> Refused:
        with pytest.raises(psycopg2.Error) as caught:
            self.value(statement, *arguments)
        return _from_diagnostics(caught.value.diag)

    def close(self) -> None:
        self.connection.close()


class _Asyncpg:
    def __init__(self, database: Database) -> None:
        self.runner = asyncio.Runner()
        place = conninfo_to_dict(database.dsn("alice"))
        self.connection = self.runner.run(
            asyncpg.connect(host=place["host"], user=place["user"], database=place["dbname"])
        )

    def value(self, statement: str, *arguments: Any) -> Any:
        return self.runner.run(self.connection.fetchval(statement, *arguments))

    def refused(self, statement: str, *arguments: Any) -> Refused:
        with pytest.raises(asyncpg.PostgresError) as caught:
            self.value(statement, *arguments)
        error: Any = caught.value
        return Refused(error.sqlstate, error.message, error.detail, error.hint)

    def close(self) -> None:
        self.runner.run(self.connection.close())
        self.runner.close()


class _SqlAlchemy:
    def __init__(self, database: Database) -> None:
        self.engine = engine_of(database)

    def value(self, statement: str, *arguments: Any) -> Any:
        names = {f"a{place}": argument for place, argument in enumerate(arguments, start=1)}
        text = statement.replace("::", r"\:\:")
        for place in range(len(arguments), 0, -1):
            text = text.replace(f"${place}", f":a{place}")
        with self.engine.begin() as connection:
            return connection.execute(sqlalchemy.text(text), names).scalar_one()

    def refused(self, statement: str, *arguments: Any) -> Refused:
        with pytest.raises(sqlalchemy.exc.DBAPIError) as caught:
            self.value(statement, *arguments)
        assert isinstance(caught.value.orig, psycopg.Error)
        return _from_diagnostics(caught.value.orig.diag)

    def close(self) -> None:
        self.engine.dispose()


class _Extended:
    """Sends what a driver with prepared statements and binary results sends. `type_oid` is that of each argument."""

    type_oid = 0

    def __init__(self, database: Database) -> None:
        self.connection = psycopg.connect(database.dsn("alice"), autocommit=True)

    def value(self, statement: str, *arguments: Any) -> Any:
        result = self._run(statement, arguments)
        assert result.status == ExecStatus.TUPLES_OK, result.error_message
        binary = result.get_value(0, 0)
        decoded = {20: ">q", 23: ">i", 701: ">d"}.get(result.ftype(0))
        return binary and (binary.decode() if decoded is None else struct.unpack(decoded, binary)[0])

    def refused(self, statement: str, *arguments: Any) -> Refused:
        result = self._run(statement, arguments)
        assert result.status == ExecStatus.FATAL_ERROR
        fields = [result.error_field(ord(code)) for code in "CMDH"]
        sqlstate, message, detail, hint = (None if text is None else text.decode() for text in fields)
        return Refused(sqlstate or "", message or "", detail, hint)

    def close(self) -> None:
        self.connection.close()

    def _run(self, statement: str, arguments: Sequence[Any]) -> Any:
        session = self.connection.pgconn
        types = [self.type_oid] * len(arguments)
        prepared = session.prepare(b"", statement.encode(), types)
        if prepared.status != ExecStatus.COMMAND_OK:
            return prepared
        session.describe_prepared(b"")
        return session.exec_prepared(b"", [str(argument).encode() for argument in arguments], result_format=1)


class _Jdbc(_Extended):
    type_oid = 1043  # JDBC's setString sends varchar


class _Go(_Extended):
    type_oid = 0  # pgx leaves the types to the server, which describes them


# The form of a call of a function with the members of a JSON object as its named arguments.
_POSTGREST_CALL = """
with source as (
    select called.job
      from (select %s::json as body) as payload,
           lateral (select model, relation, target
                      from json_to_record(payload.body) as _ (model text, relation regclass, target text)) as given,
           lateral (select public.tensile_train(model := given.model, relation := given.relation,
                                                target := given.target) as job) as called)
select coalesce(json_agg(source.job) -> 0, 'null')::text from source"""

_POSTGREST_PREDICTION = """
with source as (
    select called.kind_of
      from (select %s::json as body) as payload,
           lateral (select petal, sepal from json_to_record(payload.body) as _ (petal real, sepal real)) as given,
           lateral (select public.kind_of(petal := given.petal, sepal := given.sepal) as kind_of) as called)
select coalesce(json_agg(source.kind_of) -> 0, 'null')::text from source"""

DRIVERS = [_Psycopg, _Psycopg2, _Asyncpg, _SqlAlchemy, _Jdbc, _Go]


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest, database: Database, alice: Connection) -> Iterator[Driver]:
    with closing(request.param(database)) as session:
        yield session


@pytest.mark.by_day("_Jdbc", "_Psycopg2", "_Asyncpg")
def test_driver_trains_predicts_and_receives_errors(driver: Driver, alice: Connection, serve: Serve) -> None:
    service = serve(echo)
    job = driver.value("select tensile_train($1, $2, target => $3)", "mine", "iris", "species")
    assert isinstance(job, int)
    assert value(alice, "select model_name from tensile.jobs where job_id = %s", job) == "mine"

    row = '{"petal": 3, "sepal": 1}'
    assert driver.value("select tensile_predict($1, $2)", "flowers", row) == 0.5
    assert service.requests[-1]["rows"] == [{"petal": 3, "sepal": 1}]
    assert driver.value("select tensile_predict($1, $2::jsonb)", "flowers", row) == 0.5
    assert driver.value("select tensile_predict($1, i) from iris as i where id = 1", "flowers") == 0.5

    assert driver.refused("select tensile_train($1, $2, target => $3)", "mine", "iris", "nosuch") == Refused(
        "42703",
        'column "nosuch" of relation "public.iris" does not exist',
        None,
        "The columns are id, petal, sepal, species, kind, label_known.",
    )


@pytest.mark.by_day("_Go", "_SqlAlchemy")
def test_driver_predicts_a_table_and_deploys_a_version(driver: Driver, alice: Connection, serve: Serve) -> None:
    serve(lambda request: described(request, ["petal", "sepal"]))
    predicted = "select count(value) from tensile_predict_table($1, $2, keys => array['id'])"
    assert driver.value(predicted, "flowers", "iris") == 60
    assert driver.value("select tensile_deploy($1, $2, reason => $3)", "flowers", "1", "as before") == 1
    # Which arguments are declared as text or unknown, and which as integers, is the driver's choice.
    assert driver.value("select tensile_deploy($1, 1)", "flowers") == 1
    assert driver.refused("select tensile_deploy($1, $2)", "flowers", "9").message == (
        'model "flowers" has no version 9'
    )
    error = driver.refused(predicted, "flowers", "iris_copy")
    assert (error.sqlstate, error.message) == ("42P01", 'relation "iris_copy" does not exist')


@pytest.mark.parametrize(("type_oid", "packed"), [(23, ">i"), (20, ">q")], ids=["int4", "int8"])
def test_integers_may_be_sent_in_binary_form(
    database: Database, alice: Connection, serve: Serve, type_oid: int, packed: str
) -> None:
    """JDBC and pgx send the type and the binary form of an integer, as a program has it."""
    serve(echo)
    job = value(alice, "select tensile_train('sent', 'iris', target => 'species')")
    row = "select tensile_predict('flowers', i) from iris as i where id = $1"
    with database.connect("alice") as session:

        def called(statement: str, *arguments: int) -> Any:
            sent = [struct.pack(packed, argument) for argument in arguments]
            types = [type_oid] * len(arguments)
            return session.pgconn.exec_params(statement.encode(), sent, types, [1] * len(arguments), 1)

        answers = [
            called(row, 1),
            called("select tensile_deploy('flowers', $1)", 1),
            called("select tensile_cancel($1)", job),
            called("select tensile_predict_label('flowers', i, version => $1) from iris as i limit 1", 7),
        ]
    errors = [answer.error_field(ord("M")) for answer in answers]
    assert errors[:3] == [None] * 3
    assert [answer.get_value(0, 0) for answer in answers[:3]] == [
        struct.pack(">d", 0.5),
        struct.pack(">i", 1),
        b"\1",
    ]
    wrong = {
        23: 'model "flowers" has no version 7',
        20: "function tensile_predict_label(unknown, iris, version => bigint)",
    }
    assert errors[3].decode().startswith(wrong[type_oid])


def test_arrays_arrive_as_the_drivers_own_lists(database: Database, alice: Connection, serve: Serve) -> None:
    serve(echo)
    statement = "select tensile_predict_batch('flowers', array_agg(i order by id)) from iris as i where id <= 3"
    for kind in (_Psycopg, _Psycopg2, _Asyncpg, _SqlAlchemy):
        with closing(kind(database)) as session:
            assert session.value(statement) == [0.5, 1.5, 2.5]


def test_pandas_reads_predictions_beside_the_rows(database: Database, alice: Connection, serve: Serve) -> None:
    serve(echo)
    engine = engine_of(database)
    with closing(_SqlAlchemy(database)):
        read = pandas.read_sql("select id, tensile_predict('flowers', i) as p from iris as i where id < 4", engine)
        jobs = pandas.read_sql("select * from tensile.stat_jobs", engine)
    engine.dispose()
    assert list(read["id"]) == [1, 2, 3]
    assert read["p"].dtype == "float64"
    assert len(jobs) == value(alice, "select count(*) from tensile.stat_jobs")


def test_request_in_postgrests_manner_acts_as_the_role_that_it_sets(
    database: Database, alice: Connection, admin: Connection
) -> None:
    with authenticator_of(admin, database) as session:
        with session.transaction():
            session.execute("set local role alice; set local \"request.jwt.claims\" = '{}'")
            row = session.execute(
                _POSTGREST_CALL,
                ['{"model": "rest", "relation": "iris", "target": "species"}'],
            ).fetchone()
            assert row is not None
        assert value(admin, "select owner_name from tensile.jobs where job_id = %s", int(row[0])) == "alice"
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute("select tensile_train('rest', 'iris', target => 'species')")


def test_caller_that_only_names_arguments_predicts_by_a_typed_function(
    database: Database, alice: Connection, admin: Connection, serve: Serve
) -> None:
    features = ["petal", "sepal"]
    service = serve(lambda request: described(request, features))
    made = value(alice, "select tensile_create_predict_function('flowers', 'iris', 'kind_of')::text")
    assert made == "kind_of(real,real)"
    with authenticator_of(admin, database) as session, session.transaction():
        session.execute("set local role alice; set local timezone = 'Asia/Tokyo'")
        row = session.execute(_POSTGREST_PREDICTION, ['{"sepal": 1.5, "petal": 3}']).fetchone()
    assert row == ("0.5",)
    assert service.requests[-1]["rows"] == [{"petal": 3, "sepal": 1.5}]
    with authenticator_of(admin, database) as session:
        assert refused(session, "select kind_of(petal := 1, sepal := 2)") == Refused(
            "42501",
            'role "monitor" is not a member of tensile_user',
            None,
            "Ask an administrator for: grant tensile_user to monitor;",
        )

    features[:] = [f"c{place}" for place in range(101)]
    columns = ", ".join(f"{name} real" for name in features)
    alice.execute(f"create table broad ({columns})".encode())
    assert refused(alice, "select tensile_create_predict_function('flowers', 'broad', 'f')") == Refused(
        "54023",
        'model "flowers" needs 101 columns, and a function has at most 100 arguments',
        None,
        "Call tensile_predict('flowers', input) with a jsonb object of the columns.",
    )
    features.pop()
    alice.execute("select tensile_create_predict_function('flowers', 'broad', 'f')")


def described(request: dict[str, Any], features: Sequence[str]) -> dict[str, Any]:
    """Answer as a regression with these features, whose predictions are those of `echo`."""
    if request["verb"] == "features":
        return result(
            {"features": [{"name": name, "kind": "float"} for name in features], "kind": "value", "several": False}
        )
    if request.get("kind") == "table":
        values = ",".join(str(place + 0.5) for place, _ in enumerate(request["rows"]))
        return result({"values": f"{{{values}}}", "labels": None, "probabilities": None, "targets": None})
    return echo(request)


@contextmanager
def authenticator_of(admin: Connection, database: Database) -> Iterator[Connection]:
    """Yield a session of a role that may do nothing but become alice."""
    admin.execute("alter role monitor noinherit; grant alice to monitor")
    try:
        with database.connect("monitor") as session:
            yield session
    finally:
        admin.execute("revoke alice from monitor; alter role monitor inherit")


def engine_of(database: Database) -> sqlalchemy.Engine:
    """Return an engine of SQLAlchemy on psycopg."""
    place = conninfo_to_dict(database.dsn("alice"))
    url = sqlalchemy.URL.create("postgresql+psycopg", username=str(place["user"]), database=str(place["dbname"]))
    return sqlalchemy.create_engine(url, connect_args={"host": place["host"]})


def _formatted(statement: str) -> str:
    for place in range(9, 0, -1):
        statement = statement.replace(f"${place}", "%s")
    return statement


def _from_diagnostics(error: Any) -> Refused:
    return Refused(error.sqlstate or "", error.message_primary or "", error.message_detail, error.message_hint)
