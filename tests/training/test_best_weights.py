"""The best epoch's weights come back as they were kept, whether from memory or from a file without a name."""

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


def of(weights: Weights, names: Collection[str]) -> Weights:
    return {name: weights[name].clone() for name in names}


def same(found: Weights, wanted: Weights) -> bool:
    alike = [found[n].dtype == w.dtype and found[n].shape == w.shape and found[n].equal(w) for n, w in wanted.items()]
    return list(found) == list(wanted) and all(alike)


@pytest.mark.parametrize("in_file", [False, True])
def test_what_is_kept_last_is_read(tmp_path: Path, in_file: bool) -> None:
    best = BestWeights(WEIGHTS.keys(), tmp_path / "swap" if in_file else None)
    assert not best
    assert best.read() == {}
    best.keep(lambda names: of({name: weight * 0 for name, weight in WEIGHTS.items()}, names))
    best.keep(lambda names: of(WEIGHTS, names))
    assert best
    assert same(best.read(), WEIGHTS)
    assert same(best.read(), WEIGHTS)
    best.close()
    assert not best


def test_a_file_holds_a_large_copy_and_has_no_name(tmp_path: Path) -> None:
    best = BestWeights(WEIGHTS.keys(), tmp_path)
    most_bytes = 0

    def export(names: Collection[str]) -> Weights:
        nonlocal most_bytes
        found = of(WEIGHTS, names)
        most_bytes = max(most_bytes, sum(weight.nbytes for weight in found.values()))
        return found

    best.keep(export)
    assert list(tmp_path.iterdir()) == []
    assert most_bytes == WEIGHTS["0.weight"].nbytes  # never more of them at once than the largest
    assert best._file is not None
    best.close()
    small = BestWeights(["1.mask"], tmp_path)
    small.keep(export)
    assert small._file is None


def test_where_no_file_can_be_written_the_copy_stays_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    taken = tmp_path / "taken"
    taken.write_text("not a directory")
    best = BestWeights(WEIGHTS.keys(), taken)
    with caplog.at_level(logging.WARNING):
        best.keep(lambda names: of(WEIGHTS, names))
    assert same(best.read(), WEIGHTS)
    assert str(taken) in caplog.text


def test_a_file_that_grows_no_further_leaves_the_copy_in_memory(tmp_path: Path) -> None:
    best = BestWeights(WEIGHTS.keys(), tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, limits[1]))  # Python ignores SIGXFSZ
    try:
        best.keep(lambda names: of(WEIGHTS, names))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert same(best.read(), WEIGHTS)
