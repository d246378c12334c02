"""The modules that a machine with a GPU runs import without psycopg, SQLAlchemy and msgspec, which it may lack."""

import pytest

from tests.executor.other_process import other_process


@pytest.mark.nightly
def test_executor_scheduler_benchmarks_of_steps_and_the_gpu_suite_import_without_a_database() -> None:
    assert other_process("1").imported > 50
