"""In virtual time every function of the catalog reads the simulation's clock."""

from contextlib import closing

import pytest

from indb_tensile.bench.harness.virtual_time.virtual_catalog import VirtualClock, VirtualSession, use_virtual_time
from tests.conftest import Database

pytestmark = pytest.mark.postgres


def test_lease_of_a_worker_ends_by_the_clock(database: Database) -> None:
    use_virtual_time(database.dsn())
    clock = VirtualClock()
    with closing(VirtualSession(database.dsn(), clock)) as session:

        def is_alive() -> bool:
            row = session.run(lambda c: c.execute("select tensile.is_alive(w) from tensile.workers as w").fetchone())
            assert row is not None
            return bool(row[0])

        session.run(
            lambda c: c.execute(
                "insert into tensile.workers (host, pid, device, version, lease_s) values ('here', 1, 'd', '0', 10)"
            )
        )
        assert is_alive()
        clock.now_s = 9.0
        assert is_alive()
        clock.now_s = 11.0
        assert not is_alive()


def test_no_parsed_body_keeps_the_real_time(database: Database) -> None:
    real = """select p.oid::regprocedure::text from pg_proc as p
               where p.pronamespace = 'tensile'::regnamespace and p.prosqlbody is not null
                 and pg_get_function_sqlbody(p.oid) ~ '(?<!virtual_time[.])now[(][)]'"""
    with database.connect() as postgres:
        assert ("tensile.is_alive(tensile.workers)",) in postgres.execute(real).fetchall()
    use_virtual_time(database.dsn())
    with database.connect() as postgres:
        assert postgres.execute(real).fetchall() == []
