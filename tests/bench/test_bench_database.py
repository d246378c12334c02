"""A benchmark's own database: there with the catalog while it is measured, and gone afterwards."""

import psycopg
import pytest

from indb_tensile.bench.harness.bench_database import temporary_database
from indb_tensile.catalog import install
from indb_tensile.cli import bench
from indb_tensile.cluster import Cluster


@pytest.mark.postgres
def test_a_database_with_the_catalog_lasts_as_long_as_its_block(cluster: Cluster) -> None:
    with temporary_database(cluster.dsn(database="postgres"), "test") as own, psycopg.connect(own) as connection:
        assert install.same_source(connection)
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(own)


def test_benchmarks_that_get_a_server_of_their_own_are_benchmarks() -> None:
    assert set(bench.SERVED) <= set(bench.NOUNS)
