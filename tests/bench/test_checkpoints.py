"""The benchmark of checkpoints measures both stores on one database."""

from pathlib import Path

import pytest

from indb_tensile.bench.commands.checkpoints import measure
from tests.conftest import Database

SIZE_BYTES = 1 << 20


@pytest.mark.postgres
def test_a_file_writes_next_to_no_wal_and_the_catalog_more_than_the_bytes(database: Database, tmp_path: Path) -> None:
    figures = measure(database.dsn(), tmp_path, SIZE_BYTES, 3)
    assert list(figures) == [
        "size_bytes",
        "rounds",
        "fsync",
        "local_s",
        "local_wal_bytes",
        "catalog_s",
        "catalog_wal_bytes",
        "local_kept_bytes",
        "catalog_kept_bytes",
        "wal_ratio",
    ]
    assert (figures["size_bytes"], figures["rounds"], figures["fsync"]) == (SIZE_BYTES, 3, "off")
    assert figures["local_kept_bytes"] == SIZE_BYTES
    assert float(figures["local_wal_bytes"]) < 50_000 < SIZE_BYTES < float(figures["catalog_wal_bytes"])
    assert SIZE_BYTES < float(figures["catalog_kept_bytes"]) < 3 * SIZE_BYTES
