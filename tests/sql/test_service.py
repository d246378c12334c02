"""Check how a session works with the service: no service, a dead service, a service that does not answer, and the
requests for data sets, explanations and checks.
"""

import contextlib
import time
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from .conftest import Connection, Refused, Serve, refused, value
from .fakes import FakeService, result

pytestmark = [pytest.mark.postgres, pytest.mark.clears_database]

HINT = "Start one with: tensile up, or tensile controller; tensile doctor says what is missing."


def answer_one(_: dict[str, Any]) -> dict[str, Any]:
    return result({"values": [1.0]})


@pytest.mark.usefixtures("published")
def test_missing_socket_directory_is_reported(alice: Connection) -> None:
    assert refused(alice, "select tensile_predict('flowers', 1)") == Refused(
        "57P03",
        "no service answers: the setting socket_directory is not set",
        None,
        "An administrator sets it: select tensile_set_setting('socket_directory', '\"/run/tensile\"').",
    )


@pytest.mark.usefixtures("published")
def test_missing_worker_is_reported(alice: Connection, admin: Connection) -> None:
    admin.execute("""select tensile_set_setting('socket_directory', '"/nowhere"')""")

    assert refused(alice, "select tensile_predict('flowers', 1)") == Refused(
        "57P03", "no service answers", "No controller with a service is alive.", HINT
    )


@pytest.mark.usefixtures("published")
def test_closed_service_is_reported(alice: Connection, serve: Serve) -> None:
    serve(answer_one).close()

    assert refused(alice, "select tensile_predict('flowers', 1)") == Refused(
        "57P03", "no service answers", "Tried worker-1: No such file or directory.", HINT
    )


@pytest.mark.usefixtures("published")
def test_session_uses_one_connection_until_the_connection_breaks(alice: Connection, serve: Serve) -> None:
    service = serve(answer_one)
    for _ in range(3):
        assert value(alice, "select tensile_predict('flowers', 1)") == 1.0
    connections = len(service.connections)

    service.drop_connections()

    assert value(alice, "select tensile_predict('flowers', 1)") == 1.0
    assert (connections, len(service.connections)) == (1, 1)  # the fake does not count the dropped connection


@pytest.mark.usefixtures("published")
def test_statement_timeout_ends_a_wait_for_the_service(alice: Connection, serve: Serve) -> None:
    service = serve(lambda _: None)
    alice.execute("set statement_timeout = '300 ms'")
    started_s = time.monotonic()

    error = refused(alice, "select tensile_predict('flowers', 1)")

    assert (error.sqlstate, error.message) == ("57014", "canceling statement due to statement timeout")
    assert time.monotonic() - started_s < 30  # a wait in one piece would never end
    # The abandoned request's answer must not be taken for the answer to the next request, which may take its time.
    alice.execute("set statement_timeout = 0")
    service.answer = answer_one
    assert value(alice, "select tensile_predict('flowers', 1)") == 1.0


@pytest.mark.usefixtures("published")
def test_cancel_ends_a_wait_for_the_service(alice: Connection, serve: Serve) -> None:
    def cancel(_: dict[str, Any]) -> None:
        alice.cancel_safe()

    serve(cancel)

    assert refused(alice, "select tensile_predict('flowers', 1)").sqlstate == "57014"
    assert value(alice, "select 1") == 1


@pytest.mark.usefixtures("published")
def test_service_with_the_latest_heartbeat_is_asked_first(alice: Connection, admin: Connection, serve: Serve) -> None:
    old = serve(answer_one)
    installation = old.greeting["installation"]
    new = FakeService(
        lambda _: result({"values": [2.0]}), name="worker-2", directory=old.directory, installation=installation
    )
    admin.execute(
        """insert into tensile.workers (host, pid, device, version, service_name, lease_s, heartbeat_at)
           values ('here', 2, 'none', '0', 'worker-2', 3600, now() + interval '1 second')"""
    )
    with contextlib.closing(new):
        assert value(alice, "select tensile_predict('flowers', 1)") == 2.0


@pytest.mark.usefixtures("published")
def test_each_request_names_its_database(alice: Connection, admin: Connection, serve: Serve) -> None:
    service = serve(answer_one)
    for _ in range(2):
        value(alice, "select tensile_predict('flowers', 1)")

    own = value(admin, "select tensile.installation()::text")
    start = value(admin, "select (extract(epoch from pg_postmaster_start_time()) * 1000000)::bigint::text")
    assert service.clients == [(own, start)] * 2


@pytest.mark.parametrize(
    ("greeting", "fault"),
    [
        ({"installation": "00000000-0000-0000-0000-000000000000"}, "it belongs to another database"),
        ({"protocol": 1}, "its version is '0', and its protocol differs from this catalog's"),
        (7, "the process that listens there is not a service"),
    ],
)
@pytest.mark.usefixtures("published")
def test_service_of_another_database_gets_no_request(
    alice: Connection, serve: Serve, greeting: Any, fault: str
) -> None:
    service = serve(answer_one)
    service.greeting = service.greeting | greeting if isinstance(greeting, dict) else greeting

    assert refused(alice, "select tensile_predict('flowers', 1)") == Refused(
        "57P03", "no service answers", f"Tried worker-1: {fault}.", HINT
    )
    assert service.requests == []


@pytest.mark.usefixtures("published")
def test_next_service_is_asked_after_a_service_of_another_database(
    alice: Connection, admin: Connection, serve: Serve
) -> None:
    own = serve(answer_one)
    other = FakeService(lambda _: result({"values": [2.0]}), name="worker-2", directory=own.directory)
    admin.execute(
        """insert into tensile.workers (host, pid, device, version, service_name, lease_s, heartbeat_at)
           values ('here', 2, 'none', '0', 'worker-2', 3600, now() + interval '1 second')"""
    )
    with contextlib.closing(other):
        assert value(alice, "select tensile_predict('flowers', 1)") == 1.0
    assert other.requests == []


@pytest.mark.usefixtures("published")
def test_statement_timeout_ends_a_wait_for_the_greeting(alice: Connection, serve: Serve) -> None:
    serve(answer_one).greeting = None  # no greeting: the service hangs
    alice.execute("set statement_timeout = '300 ms'")

    assert refused(alice, "select tensile_predict('flowers', 1)").sqlstate == "57014"


@pytest.mark.usefixtures("published")
def test_prediction_waits_a_limited_time_for_a_catalog_lock(
    alice: Connection, admin: Connection, serve: Serve
) -> None:
    serve(answer_one)
    with admin.transaction():
        admin.execute("lock table tensile.models in access exclusive mode")

        error = refused(alice, "select tensile_predict('flowers', 1)")

    assert (error.sqlstate, error.hint) == (
        "55P03",
        "Another session holds a lock on a table of the catalog: see pg_locks, and run the statement again.",
    )


@pytest.mark.usefixtures("published")
def test_service_name_is_never_a_path(alice: Connection, admin: Connection, serve: Serve) -> None:
    service = serve(answer_one)
    admin.execute("alter table tensile.workers drop constraint workers_service_name_is_a_name")
    admin.execute("update tensile.workers set service_name = %s", (f"../{service.directory.name}/worker-1",))

    error = refused(alice, "select tensile_predict('flowers', 1)")

    assert (error.sqlstate, service.requests) == ("57P03", [])


@pytest.mark.parametrize("directory", ["relative", 7, None])
def test_socket_directory_must_be_an_absolute_path(admin: Connection, directory: Any) -> None:
    error = refused(admin, "select tensile_set_setting('socket_directory', %s)", Jsonb(directory))

    assert error.sqlstate == "22023"


def test_unknown_setting_is_refused(admin: Connection) -> None:
    assert refused(admin, "select tensile_set_setting('speed', '9')") == Refused(
        "42704",
        'there is no setting "speed"',
        None,
        "Known settings: all_snapshots_max_bytes, fewer_devices_after, retain_drift, retain_events, retain_jobs,"
        " retain_links, retain_metrics, retain_plans, retain_samples, retain_usage, retain_versions, retain_workers,"
        " role_snapshots_max_bytes, snapshot_max_bytes, socket_directory, tls_directory,"
        " usage_half_life.",
    )


PAGES = [[[1, [[0.5, 1.5]], "a"], [2, [[2.5, 3.5]], "b"]], [[3, [[4.5, 5.5]], "c"]], []]


def dataset(request: dict[str, Any]) -> dict[str, Any]:
    place = {0: 0, 2: 1, 3: 2}[request["offset"]]
    columns = [["id", "bigint"], ["pixels", "real[]"], ["label", "text"]]
    return result({"columns": columns, "primary_key": "id", "rows": PAGES[place], "total": 3})


def test_sample_data_set_becomes_a_table_of_the_caller(alice: Connection, serve: Serve) -> None:
    serve(dataset)

    assert value(alice, "select tensile_load_dataset('letters')") == 3

    assert alice.execute("select * from letters order by id").fetchall() == [
        (1, [[0.5, 1.5]], "a"),
        (2, [[2.5, 3.5]], "b"),
        (3, [[4.5, 5.5]], "c"),
    ]
    owner = value(alice, "select tableowner from pg_tables where tablename = 'letters'")
    reader_reads = value(alice, "select has_table_privilege('tensile_reader', 'letters', 'select')")
    key = value(alice, "select count(*) from pg_index where indrelid = 'letters'::regclass and indisprimary")
    assert (owner, reader_reads, key) == ("alice", True, 1)


def test_sample_data_set_can_have_another_name(alice: Connection, serve: Serve) -> None:
    serve(dataset)

    alice.execute("select tensile_load_dataset('letters', 'My Letters')")

    assert value(alice, """select count(*) from "My Letters" """) == 3


@pytest.mark.own_database
def test_table_name_with_a_dot_is_a_schema_and_a_table(alice: Connection, admin: Connection, serve: Serve) -> None:
    serve(dataset)
    admin.execute("create schema lab authorization alice; create schema closed")

    assert value(alice, "select tensile_load_dataset('letters', 'lab.Letters')") == 3
    assert value(alice, "select count(*) from lab.letters") == 3
    assert value(alice, """select tensile_load_dataset('letters', 'lab."a.b"')""") == 3
    assert value(alice, """select count(*) from lab."a.b" """) == 3

    missing = refused(alice, "select tensile_load_dataset('letters', 'nosuch.letters')")
    hint = "Ask an administrator for: create schema nosuch authorization alice;"
    assert missing == Refused("3F000", 'schema "nosuch" does not exist', None, hint)
    owned = refused(admin, "select tensile_load_dataset('letters', 'nosuch.letters')")
    assert owned.hint == "Run: create schema nosuch;"
    closed = refused(alice, "select tensile_load_dataset('letters', 'closed.letters')")
    assert (closed.sqlstate, closed.hint) == (
        "42501",
        "Ask its owner for: grant usage, create on schema closed to alice;",
    )
    for name, fault in (
        ("a..b", '"a..b" is not a table name'),
        ("a.b.c", '"a.b.c" has 3 parts'),
    ):
        error = refused(alice, "select tensile_load_dataset('letters', %s)", name)
        assert (error.sqlstate, error.message) == ("22023", fault)


def test_existing_table_is_not_overwritten(alice: Connection, serve: Serve) -> None:
    serve(dataset)

    error = refused(alice, "select tensile_load_dataset('letters', 'iris')")

    assert (error.sqlstate, error.message) == ("42P07", 'relation "public.iris" already exists')


def test_malformed_column_type_of_a_data_set_is_not_executed(alice: Connection, serve: Serve) -> None:
    serve(lambda _: result({"columns": [["id", "int); drop table iris; --"]], "primary_key": "id", "rows": []}))

    error = refused(alice, "select tensile_load_dataset('letters')")

    assert (error.sqlstate, value(alice, "select count(*) from iris")) == ("08P01", 60)


def test_explain_request_contains_statistics_of_the_columns(alice: Connection, serve: Serve) -> None:
    row = {
        "policy": "tensile",
        "peak_bytes": 1 << 33,
        "floor_bytes": 10,
        "bound_bytes": None,
        "saved": 0.25,
        "iteration_ms": 1.5,
        "overhead": 0.1,
        "stall_ms": 0.5,
        "swaps": 2,
        "swapped_bytes": 1 << 34,
        "recomputed": 5,
        "planning_ms": 3.5,
        "starts_now": None,
        "note": "",
    }
    service = serve(lambda _: result({"rows": [row]}))
    alice.execute("create table v (a real[], b text, target int); grant select on v to tensile_reader")
    alice.execute("insert into v select array[[1, 2, 3], [4, 5, 6]], i % 4, i % 2 from generate_series(1, 20) as i")

    rows = alice.execute("select * from tensile_explain('m', 'v', memory_limit => '1 MB')").fetchall()

    assert rows == [tuple(row.values())]
    request = service.requests[0]
    assert (request["verb"], request["rows"], request["limit_bytes"], request["budget_bytes"]) == (
        "explain",
        20,
        1 << 20,
        None,
    )
    assert request["columns"] == [
        {"name": "a", "type": "real[]", "kind": "array", "distinct": None, "ndims": 2, "shape": [2, 3], "heads": []},
        {"name": "b", "type": "text", "kind": "text", "distinct": 4, "ndims": 0, "shape": [], "heads": []},
        {"name": "target", "type": "integer", "kind": "integer", "distinct": 2, "ndims": 0, "shape": [], "heads": []},
    ]
    assert value(alice, "select count(*) from tensile.jobs") == 0


def test_check_names_missing_parts(alice: Connection, serve: Serve) -> None:
    before = dict(alice.execute("select item, ok from tensile_check()").fetchall())
    serve(lambda _: result({"version": "9.9"}))
    after = alice.execute("select item, ok, detail, hint from tensile_check()").fetchall()

    assert [item for item, ok in before.items() if not ok] == ["controllers", "socket directory", "service"]
    assert [row for row in after if not row[1]] == []
    assert after[-1] == ("service", True, "version 9.9", None)


def test_too_long_answer_counts_as_no_answer(database: Any, published: int, serve: Serve) -> None:
    serve(lambda _: {"ok": True, "result": {"values": ["x" * (70 << 20)]}})

    with database.connect("alice") as alice, pytest.raises(psycopg.Error) as caught:
        alice.execute("select tensile_predict('flowers', 1)")

    assert caught.value.sqlstate == "57P03"
