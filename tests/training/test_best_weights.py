"""The best epoch's weights are read back as they were stored, from memory or from a file without a name."""

import logging
import resource
from collections.abc import Collection
from pathlib import Path

import pytest
import torch

from indb_tensile.config import MIB
from worker.training.best_weights import BestWeights, Weights

WEIGHTS: Weights = {
    "0.weight": torch.arange(600_000, dtype=torch.float32).reshape(600, 1000),
    "0.half": torch.arange(7, dtype=torch.bfloat16),
    "1.running": torch.tensor(3, dtype=torch.int64),
    "1.mask": torch.tensor([True, False, True]),
    "1.empty": torch.empty(0, 4),
    "2.turned": torch.arange(12).to(torch.complex64).reshape(3, 4).t(),
}
SIZES = {name: weight.nbytes for name, weight in WEIGHTS.items()}


def copy_of(weights: Weights, names: Collection[str]) -> Weights:
    return {name: weights[name].clone() for name in names}


def same(actual: Weights, expected: Weights) -> bool:
    return list(actual) == list(expected) and all(
        actual[name].dtype == weight.dtype and actual[name].shape == weight.shape and actual[name].equal(weight)
        for name, weight in expected.items()
    )


@pytest.mark.parametrize("in_file", [False, True])
def test_the_weights_stored_last_are_read(tmp_path: Path, in_file: bool) -> None:
    best = BestWeights(SIZES, tmp_path / "swap" if in_file else None)
    assert not best
    assert best.read() == {}
    best.keep(lambda names: copy_of({name: weight * 0 for name, weight in WEIGHTS.items()}, names))
    best.keep(lambda names: copy_of(WEIGHTS, names))
    assert best
    assert same(best.read(), WEIGHTS)
    assert same(best.read(), WEIGHTS)
    best.close()
    assert not best


def test_a_large_copy_is_in_a_file_without_a_name(tmp_path: Path) -> None:
    best = BestWeights(SIZES, tmp_path)
    most_bytes = exports = 0

    def export(names: Collection[str]) -> Weights:
        nonlocal most_bytes, exports
        exports += 1
        exported = copy_of(WEIGHTS, names)
        most_bytes = max(most_bytes, sum(weight.nbytes for weight in exported.values()))
        return exported

    best.keep(export)
    assert exports == 2, "the small weights together"
    assert list(tmp_path.iterdir()) == []
    assert most_bytes == WEIGHTS["0.weight"].nbytes  # at no time more than the largest weight
    assert best._file is not None
    best.close()
    small = BestWeights({"1.mask": 3}, tmp_path)
    small.keep(export)
    assert small._file is None


def test_the_copy_stays_in_memory_if_no_file_can_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    taken = tmp_path / "taken"
    taken.write_text("not a directory")
    best = BestWeights(SIZES, taken)
    with caplog.at_level(logging.WARNING):
        best.keep(lambda names: copy_of(WEIGHTS, names))
    assert same(best.read(), WEIGHTS)
    assert str(taken) in caplog.text


def test_a_file_that_cannot_grow_leaves_the_copy_in_memory(tmp_path: Path) -> None:
    best = BestWeights(SIZES, tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, limits[1]))  # Python ignores SIGXFSZ
    try:
        best.keep(lambda names: copy_of(WEIGHTS, names))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert same(best.read(), WEIGHTS)
