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


def test_the_environment_of_a_controller_is_enough() -> None:
    found = settings.load(ENVIRONMENT)
    assert (found.directory, found.worker, found.peer_uid) == (Path("/run/tensile"), 7, None)
    assert (found.shared.dsn, found.resident_bytes) == ("dbname=x", GIB)


def test_who_is_answered_and_how_much_is_kept_can_be_set() -> None:
    found = settings.load({**ENVIRONMENT, "TENSILE_SERVICE_PEER_UID": "0", "TENSILE_SERVICE_RESIDENT_BYTES": "512MB"})
    assert (found.peer_uid, found.resident_bytes) == (0, GIB // 2)


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
def test_what_is_wrong_is_named(name: str, value: str) -> None:
    with pytest.raises(RequestError) as caught:
        settings.load({**ENVIRONMENT, name: value})
    assert name in caught.value.message + caught.value.hint
