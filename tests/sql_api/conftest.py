"""Fixtures: a fresh session of the bridge for each test, and a fake service with scripted answers."""

from collections.abc import Callable, Iterator

import pytest

from indb_tensile.sql_api import service_connection, spi
from tests.sql.fakes import Answer, FakeService
from tests.sql_api.fakes import DEPLOYED, FakePlpy, address_of, plpy_with

Serve = Callable[[Answer], tuple[FakeService, FakePlpy]]


@pytest.fixture(autouse=True)
def _fresh_session(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    connection = service_connection.ServiceConnection()
    monkeypatch.setattr(service_connection, "_connection", connection)
    monkeypatch.setattr(spi, "_plans", {})
    yield
    connection.close()


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A function that starts a fake service, and returns it with a fake database that has a deployed version."""
    started: list[FakeService] = []

    def start(answer: Answer) -> tuple[FakeService, FakePlpy]:
        fake = FakeService(answer)
        started.append(fake)
        return fake, plpy_with(services=[address_of(fake)], version=[DEPLOYED])

    yield start
    for fake in started:
        fake.close()
