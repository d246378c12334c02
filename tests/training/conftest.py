"""Fixtures of the training tests."""

from collections.abc import Iterator

import pytest

from indb_tensile.catalog.connection import Session
from tests.conftest import Database


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    """Open a session of the trainers' role."""
    with Session(database.dsn("tensile_worker"), application_name="test") as made:
        yield made
