"""Check which error the service raises for a version that it cannot read."""

from contextlib import closing
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from indb_tensile.bench.harness.chaos.chaos_forwarder import Forwarder
from indb_tensile.errors import MissingError, UnavailableError
from indb_tensile.job import ModelVersionId
from tests.conftest import Database
from worker.serving.store import Store

pytestmark = pytest.mark.postgres


def test_version_is_unavailable_while_the_database_is_unreachable(database: Database, tmp_path: Path) -> None:
    dsn = make_conninfo(database.dsn("tensile_worker"), host=str(tmp_path))
    with (
        closing(Forwarder(tmp_path / ".s.PGSQL.5432", database.cluster.run / ".s.PGSQL.5432")) as forwarder,
        Store(dsn, "service") as store,
    ):
        forwarder.refuse()
        with pytest.raises(UnavailableError, match="version 1 cannot be read now") as caught:
            store.load(ModelVersionId(1))
    assert caught.value.sqlstate == "57P03"
    assert "no connection to PostgreSQL" in caught.value.detail


def test_a_store_that_begins_while_the_database_is_away_says_so_when_it_reads(
    database: Database, tmp_path: Path
) -> None:
    dsn = make_conninfo(database.dsn("tensile_worker"), host=str(tmp_path))
    with (
        closing(Forwarder(tmp_path / ".s.PGSQL.5432", database.cluster.run / ".s.PGSQL.5432")) as forwarder,
        Store(dsn, "service loader", at_once=False) as store,
    ):
        forwarder.refuse()
        with pytest.raises(UnavailableError, match="version 1 cannot be read now"):
            store.load(ModelVersionId(1))
        forwarder.heal()
        with pytest.raises(MissingError):
            store.load(ModelVersionId(1))
