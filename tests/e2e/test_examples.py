"""Check that the quickstart's SQL files run, with networks that are small enough for a test."""

import subprocess
from pathlib import Path

import pytest

from tests.e2e.conftest import MIB, Service

pytestmark = pytest.mark.postgres

EXAMPLES = Path(__file__).parents[2] / "examples" / "sql"
SMALL = """
select tensile_create_model('digits', '{"type": "cnn", "channels": [16]}', '{"epochs": 6, "batch_size": 128}');
select tensile_create_model('breast_cancer', '{"type": "mlp", "hidden": [256]}', '{"epochs": 60}');
select tensile_create_model('diabetes', '{"type": "mlp", "hidden": [256]}', '{"epochs": 60}');
"""


def psql(service: Service, *arguments: str) -> str:
    """Run psql as the ordinary role, and return its output. The first error ends it."""
    command = ["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", service.database.dsn("demo"), *arguments]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


WORKED = {
    "confidence": ("-v", "epochs=3"),
    "diagnosis": ("-v", "epochs=3"),
    "progression": ("-v", "epochs=3"),
    "scans": ("-v", "epochs=3"),
    "search": ("-v", "epochs=3", "-v", "trials=3"),
    "sunspots": ("-v", "epochs=2"),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", WORKED)
def test_a_worked_example_runs(running: Service, name: str) -> None:
    printed = psql(running, *WORKED[name], "-f", str(EXAMPLES.parent / "worked" / f"{name}.sql"))
    _, results = printed.split("\n\n", 1)  # the first result says whether the table had to be loaded
    assert "(0 rows)" not in results
    assert {path.stem for path in (EXAMPLES.parent / "worked").iterdir()} == set(WORKED)


@pytest.mark.nightly
def test_quickstart_files_run_one_after_another(service: Service) -> None:
    service.settings |= {"TENSILE_CAPACITY_BYTES": str(256 * MIB), "TENSILE_SPARE_TRAINERS": "3"}
    service.start()
    assert "digits" in psql(service, "-f", str(EXAMPLES / "load.sql"))
    assert "digits" not in psql(service, "-f", str(EXAMPLES / "load.sql")), (
        "load.sql loaded the data set a second time"
    )
    psql(service, "-c", SMALL)
    psql(service, "-f", str(EXAMPLES / "models.sql"))  # the models exist already
    explained = psql(service, "-f", str(EXAMPLES / "explain.sql"))
    assert all(policy in explained for policy in ("vanilla", "liveness", "tensile+"))
    psql(service, "-f", str(EXAMPLES / "train.sql"))
    jobs = [row[0] for row in service.connection.execute("select job_id from tensile.jobs").fetchall()]
    assert service.until_ended(*jobs) == ["succeeded"] * 3
    report = psql(service, "-f", str(EXAMPLES / "report.sql"))
    assert all(model in report for model in ("digits", "breast_cancer", "diabetes"))
    assert "within budget" in report
    assert "stp_foretold" in report
    predicted = psql(service, "-f", str(EXAMPLES / "predict.sql"))
    assert "malignant" in predicted
    psql(service, "-f", str(EXAMPLES / "train.sql"))
    jobs = [row[0] for row in service.connection.execute("select job_id from tensile.jobs").fetchall()]
    assert len(jobs) == 6
    assert set(service.until_ended(*jobs)) == {"succeeded"}
    compared = psql(service, "-f", str(EXAMPLES / "compare.sql"))
    assert all(how in compared for how in ("in turns", "shared"))
