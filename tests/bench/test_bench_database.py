"""A benchmark's own database has the catalog, and is dropped after the benchmark."""

import psycopg
import pytest

from indb_tensile.bench.harness.processes.bench_database import temporary_database
from indb_tensile.catalog import install
from indb_tensile.cli import bench
from indb_tensile.cluster import Cluster


@pytest.mark.postgres
def test_the_database_exists_only_within_its_block(cluster: Cluster) -> None:
    with temporary_database(cluster.dsn(database="postgres"), "test") as own, psycopg.connect(own) as connection:
        assert install.same_source(connection)
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(own)


def test_every_benchmark_with_its_own_server_exists() -> None:
    assert set(bench.SERVED) <= set(bench.NOUNS)
