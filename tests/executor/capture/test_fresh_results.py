"""Results of equal calls are made without running on fakes again. Capturing takes time linear in the network."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from indb_tensile.bench.harness.exactness.convolutional import Cells
from indb_tensile.executor.capture.aten import fake_strided
from indb_tensile.executor.capture.fresh_results import FreshResults
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.step_capture import capture_training
from indb_tensile.executor.capture.step_trace import fake_mode

PACKAGE = str(Path(sys.modules[FreshResults.__module__].__file__ or "").parents[2])


def layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    size_bytes = tensor.untyped_storage().nbytes()
    return type(tensor), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, size_bytes


@pytest.mark.parametrize(
    "run",
    [
        lambda x: x + 1,
        lambda x: x.t().exp(),
        lambda x: torch.ops.aten.native_dropout.default(x, 0.5, True),
        lambda x: torch.ops.aten.var_mean.correction(x, [0]),
        lambda x: x.to(torch.bfloat16),
        lambda x: x.sum() > 0,
    ],
)
def test_an_equal_call_gives_equal_results_in_storages_of_their_own(run: Callable[[torch.Tensor], Any]) -> None:
    mode, known = fake_mode(), FreshResults()
    with mode:
        x = torch.empty(3, 4)
        first = run(x)
        known.keep("called", [x], first)
        again = known.get(mode, "called")
    assert type(again) is type(first)
    pairs = [(first, again)] if isinstance(first, torch.Tensor) else list(zip(first, again, strict=True))
    assert [layout(first) for first, _ in pairs] == [layout(second) for _, second in pairs]
    assert all(a.untyped_storage()._cdata != b.untyped_storage()._cdata for a, b in pairs)
    assert known.get(mode, "called otherwise") is None


@pytest.mark.parametrize(
    "run",
    [
        lambda x: x,
        lambda x: x.t(),
        lambda x: (x + 1)[1:],
        lambda x: (x + 1).chunk(2),
        lambda x: [x + 1, x],
        lambda x: (x + 1, 7),
    ],
)
def test_views_and_results_that_share_a_storage_are_not_cached(run: Callable[[torch.Tensor], Any]) -> None:
    mode, known = fake_mode(), FreshResults()
    with mode:
        x = torch.empty(3, 4)
        known.keep("called", [x], run(x))
        assert known.get(mode, "called") is None


@pytest.mark.parametrize("stride", [(4, 1), (1, 3), (9, 2), (0, 0)])
def test_a_fake_made_directly_equals_a_fake_made_by_torch(stride: tuple[int, int]) -> None:
    mode = fake_mode()
    made = fake_strided(mode, (3, 4), stride, torch.bfloat16, torch.device("cpu"))
    with mode:
        expected = torch.empty_strided((3, 4), stride, dtype=torch.bfloat16, device="cpu")
        assert layout(made + made) == layout(expected + expected)
    assert layout(made) == layout(expected)


@pytest.mark.nightly  # captures large networks
def test_the_packages_own_calls_in_a_capture_grow_no_faster_than_the_network() -> None:
    small, large = (_calls_of_capturing(cells) for cells in (1, 4))
    assert large < 4.4 * small


def _calls_of_capturing(cells: int) -> int:
    """Count the calls of the package's functions, and their calls of built-in functions, in one capture."""
    with torch.device("meta"):
        module, x, y = Cells(cells), torch.empty(2, 3, 8, 8), torch.empty(2, dtype=torch.int64)
    count = 0

    def counted(frame: Any, event: str, _: object) -> None:
        nonlocal count
        count += event in ("call", "c_call") and frame.f_code.co_filename.startswith(PACKAGE)

    sys.setprofile(counted)
    try:
        capture_training(module, functional.cross_entropy, x, y, OptimizerSettings())
    finally:
        sys.setprofile(None)
    return count
