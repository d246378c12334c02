"""Shared by the tests of upgrades: the older release, both ways to install, and small steps on a connection."""

import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from indb_tensile.catalog.install import EXTENSION, SCRIPT

BOTH_WAYS = pytest.mark.parametrize("way", [SCRIPT, EXTENSION])
OLD = "0.1.0"

Connection = psycopg.Connection[Any]


def connect_as(connection: Connection, role: str) -> Connection:
    """Connect to the same database as this role."""
    return psycopg.connect(host=connection.info.host, dbname=connection.info.dbname, user=role, autocommit=True)


def fetch_all(connection: Connection, query: str, *values: Any) -> list[Any]:
    """Return all rows of the query."""
    return connection.execute(query.encode(), values or None).fetchall()


def until(condition: Callable[[], object]) -> None:
    """Poll until the condition is true; fail after 30 s."""
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
