import logging
from pathlib import Path

import pytest

from indb_tensile.config import GIB, Settings
from indb_tensile.errors import RequestError
from indb_tensile.executor.hardware import within_machine


def test_a_budget_beyond_the_machine_is_refused_with_both_figures() -> None:
    with pytest.raises(RequestError) as refused:
        within_machine(Settings(), lambda: GIB)
    assert refused.value.message == (
        "budget_bytes (TENSILE_BUDGET_BYTES) is 2147483648: at most 1073741824 is needed, the memory of this "
        "machine, of which an emulated device takes its own"
    )


def test_of_the_host_memory_that_is_set_no_more_than_the_machine_has_is_used(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert within_machine(Settings(), lambda: 16 * GIB) == Settings()
    assert not caplog.records
    assert within_machine(Settings(), lambda: 4 * GIB) == Settings(host_pool_bytes=4 * GIB)
    assert "host_pool_bytes (TENSILE_HOST_POOL_BYTES) is 8589934592" in caplog.text


def test_a_directory_that_holds_less_than_the_budget_is_told_before_jobs_find_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    huge = Settings(capacity_bytes=1000 * GIB, budget_bytes=1000 * GIB, memory_directory=str(tmp_path))
    with caplog.at_level(logging.WARNING):
        within_machine(huge, lambda: 1000 * GIB)
    assert f"memory_directory {tmp_path} has" in caplog.text
