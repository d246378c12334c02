"""A worker is alive until it stops or its lease ends. The function that says so is planned as a plain condition."""

import pytest

from tests.conftest import Database

pytestmark = pytest.mark.postgres


def test_a_worker_is_alive_until_it_stops_or_its_lease_ends(database: Database) -> None:
    with database.connect() as postgres:
        rows = postgres.execute(
            """insert into tensile.workers as w (host, pid, device, version, lease_s, heartbeat_at, stopped_at)
               values ('late', 1, 'd', '0', 10, now() - interval '9.9 seconds', null),
                      ('silent', 2, 'd', '0', 10, now() - interval '10 seconds', null),
                      ('with a longer lease', 3, 'd', '0', 11, now() - interval '10 seconds', null),
                      ('after a step of the clock', 4, 'd', '0', 10, now() + interval '1 hour', null),
                      ('stopped', 5, 'd', '0', 10, now(), now())
               returning w.host, tensile.is_alive(w)"""
        ).fetchall()
    assert rows == [
        ("late", True),
        ("silent", False),
        ("with a longer lease", True),
        ("after a step of the clock", True),
        ("stopped", False),
    ]


@pytest.mark.shares_database
@pytest.mark.parametrize("role", ["postgres", "alice", "tensile_worker"])
def test_each_role_plans_the_function_as_a_condition_on_columns(database: Database, role: str) -> None:
    with database.connect(role) as connection:
        plan = connection.execute(
            "explain (verbose, costs off) select w.worker_id from tensile.workers as w where tensile.is_alive(w)"
        ).fetchall()
    text = "\n".join(line for (line,) in plan)
    assert "is_alive" not in text
    assert "(w.stopped_at IS NULL) AND (w.heartbeat_at > (now() - make_interval(" in text
