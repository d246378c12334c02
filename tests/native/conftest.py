"""Fixtures of the tests of the native library."""

from pathlib import Path

import pytest

from tests.native.cuda_double import build


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the fake CUDA driver, named libcuda.so.1."""
    return build(tmp_path_factory.mktemp("driver"))
