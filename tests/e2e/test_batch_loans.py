"""A real controller lends free device memory for next batches, and no bit and no planned peak depends on it."""

import os
import signal

import psycopg
import pytest

from tests.e2e.conftest import MIB, Service
from tests.e2e.trainings import check_killed_without_fault, child_pids, device_columns, device_is_free, train, weights

pytestmark = [pytest.mark.postgres, pytest.mark.nightly]

ROWS, COLUMNS, BATCH = 2048, 1024, 512
LOAN_BYTES = BATCH * COLUMNS * 4 + BATCH * 8
_TABLE = f"""
create table wide as
select array(select sin(r * 0.37 + c * 0.11)::real from generate_series(1, {COLUMNS}) as c) as x, (r % 3)::text as y
from generate_series(1, {ROWS}) as r;
grant select on wide to tensile_reader;
"""
_ARCHITECTURE = '{"type": "mlp", "hidden": [256]}'


def start(demo: psycopg.Connection, model: str, epochs: int) -> int:
    options = {"batch_size": BATCH, "epochs": epochs, "optimizer": "sgd"}
    return train(demo, model, "wide", architecture=_ARCHITECTURE, **options)


def until_lent(service: Service, job: int, loans: int) -> None:
    """Wait until the job has been lent memory so many times."""
    service.until(lambda: service.log.read_text(errors="replace").count(_lent(job)) >= loans, f"loan {loans}")


def _lent(job: int) -> str:
    return f"job {job}: has {LOAN_BYTES} bytes beside its plan for its next batch"


def granted(service: Service) -> tuple[int, ...] | None:
    """Return the bytes of the device that jobs are granted, once these have a loan."""
    columns = device_columns(service, "granted_bytes")
    return columns if columns is not None and columns[0] > LOAN_BYTES else None


def check_peaks(service: Service, *jobs: int) -> None:
    """Check that iterations had exactly the planned peaks, and that the device was never over its budget."""
    rows = service.connection.execute(
        "select predicted_peak_bytes, measured_peak_bytes from tensile.plans"
        " where job_id = any(%s) and measured_peak_bytes is not null",
        (list(jobs),),
    ).fetchall()
    assert rows
    assert [planned for planned, _ in rows] == [measured for _, measured in rows]
    columns = device_columns(service, "high_water_bytes", "budget_bytes")
    assert columns is not None
    assert columns[0] <= columns[1]


def test_loan_survives_kills_returns_for_other_jobs_and_changes_no_bit(service: Service) -> None:
    service.settings |= {"TENSILE_LINK_IN_BYTES_PER_S": "60000000", "TENSILE_SHARING": "any_price"}
    with service.database.connect("demo") as demo:
        demo.execute(_TABLE)
        service.start()
        killed = start(demo, "killed", 60)
        until_lent(service, killed, 1)
        os.kill(child_pids(service, "tensile trainer")[0], signal.SIGKILL)
        until_lent(service, killed, 2)
        (granted_bytes,) = service.until(lambda: granted(service), "the device's use")
        other = start(demo, "other", 3)
        assert service.until_ended(other, killed) == ["succeeded", "succeeded"]
        check_killed_without_fault(service, killed)
        check_peaks(service, killed, other)
        service.until(lambda: device_is_free(service), "the device to be free")
        service.stop()
        service.settings["TENSILE_CAPACITY_BYTES"] = str(granted_bytes - MIB)
        service.start()
        tight = start(demo, "tight", 60)
        assert service.until_ended(tight) == ["succeeded"]
    check_peaks(service, tight)
    assert weights(service, killed) == weights(service, tight)
    log = service.log.read_text(errors="replace")
    assert f"job {tight}: waited" in log
    ahead = {
        job: int(log.rpartition(f"job {job}: waited")[2].partition("of which ")[2].split()[0])
        for job in (killed, tight)
    }
    assert ahead[tight] == 0 < ahead[killed]
