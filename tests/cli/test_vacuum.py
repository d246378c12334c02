"""Check that `tensile vacuum` removes all rows at once that controllers remove step by step."""

import json

import pytest

from tests.catalog.ended_jobs import count_rows, publish_jobs
from tests.cli.conftest import Tensile
from tests.conftest import Database

pytestmark = pytest.mark.postgres


def test_vacuum_removes_all_old_rows_and_prints_their_numbers(database: Database) -> None:
    publish_jobs(database, 2, age="100 days")
    publish_jobs(database, 1)
    admin = Tensile({"TENSILE_DSN": database.dsn("admin")})
    done = admin("vacuum", "--json")
    assert done.code == 0
    removed = json.loads(done.out)
    assert {kind: removed[kind] for kind in ("plans", "metrics", "jobs", "workers", "links", "versions")} == {
        "plans": 2,
        "metrics": 4,
        "jobs": 2,
        "workers": 1,
        "links": 0,
        "versions": 0,
    }
    assert count_rows(database, "jobs") == 1
    assert json.loads(admin("vacuum", "--json").out) == dict.fromkeys(removed, 0)


def test_vacuum_of_an_ordinary_user_is_refused(demo: Tensile) -> None:
    done = demo("vacuum")
    assert done.code == 3
    assert "permission denied for function vacuum_step" in done.err
