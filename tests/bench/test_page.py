"""Run the benchmark of the page with few pages."""

import json
import subprocess
import sys

import pytest

from tests.conftest import Database

pytestmark = [pytest.mark.postgres, pytest.mark.nightly]


def test_the_benchmark_prints_every_figure(database: Database) -> None:
    options = ["--pages", "2", "--seconds", "1", "--jobs", "5", "--json", "--dsn", database.dsn()]
    done = subprocess.run(
        [sys.executable, "-m", "indb_tensile.bench", "page", *options], capture_output=True, text=True, check=True
    )
    figures = json.loads(done.stdout)

    assert figures["samples_of_a_day"] == 43_200
    assert figures["samples_of_jobs_kept"] == 4 * figures["samples_kept"] < 10_000
    assert figures["pages"] == 2
    assert figures["events_per_page"] >= 1
    assert done.stderr == ""
