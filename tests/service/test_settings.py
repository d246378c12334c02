"""Check the service's settings, which it reads from its environment."""

from pathlib import Path

import pytest

from indb_tensile.config import GIB
from indb_tensile.errors import RequestError
from worker.serving import settings

ENVIRONMENT = {
    "TENSILE_DSN": "dbname=x",
    "TENSILE_SERVICE_DIRECTORY": "/run/tensile",
    "TENSILE_WORKER_ID": "7",
}


def test_environment_of_a_controller_is_sufficient() -> None:
    loaded = settings.load(ENVIRONMENT)
    assert (loaded.directory, loaded.worker, loaded.peer_uid) == (
        Path("/run/tensile"),
        7,
        None,
    )
    assert (loaded.shared.dsn, loaded.resident_bytes) == ("dbname=x", GIB)


def test_service_that_only_reads_has_no_worker_and_takes_its_directory_from_the_catalog() -> None:
    loaded = settings.load({"TENSILE_DSN": "dbname=x", "TENSILE_SERVICE_READ_ONLY": "1"})
    assert (loaded.worker, loaded.primary_dsn) == (None, "")


def test_only_a_service_that_only_reads_counts_in_another_database() -> None:
    primary = {"TENSILE_SERVICE_PRIMARY_DSN": "host=primary"}
    assert settings.load({**ENVIRONMENT, **primary}).primary_dsn == ""
    only_reads = {"TENSILE_DSN": "dbname=x", "TENSILE_SERVICE_READ_ONLY": "1"}
    assert settings.load(only_reads | primary).primary_dsn == "host=primary"


def test_user_and_cache_size_can_be_set() -> None:
    loaded = settings.load(
        {**ENVIRONMENT, "TENSILE_SERVICE_PEER_UID": "0", "TENSILE_SERVICE_RESIDENT_BYTES": "512MB"}
    )
    assert (loaded.peer_uid, loaded.resident_bytes) == (0, GIB // 2)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TENSILE_SERVICE_DIRECTORY", ""),
        ("TENSILE_WORKER_ID", ""),
        ("TENSILE_WORKER_ID", "../7"),
        ("TENSILE_SERVICE_PEER_UID", "postgres"),
        ("TENSILE_SERVICE_RESIDENT_BYTES", "much"),
    ],
)
def test_error_names_the_invalid_variable(name: str, value: str) -> None:
    with pytest.raises(RequestError) as caught:
        settings.load({**ENVIRONMENT, name: value})
    assert name in caught.value.message + caught.value.hint
