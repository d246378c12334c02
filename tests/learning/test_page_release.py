"""Pages of an array are returned to the system while the array lives."""

import mmap
from pathlib import Path

import numpy as np

from indb_tensile.learning.storage.page_release import discard

ROWS = 1 << 21


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_the_pages_of_discarded_rows_are_released_and_the_others_remain() -> None:
    values = np.arange(1, ROWS + 1, dtype=np.int64)
    before = resident_bytes()
    discard(values, 0, ROWS // 2)
    assert resident_bytes() < before - values.nbytes // 4
    assert (values[ROWS // 2 :] == np.arange(ROWS // 2 + 1, ROWS + 1)).all()
    assert not values[mmap.PAGESIZE // 8 : ROWS // 2 - mmap.PAGESIZE // 8].any()


def test_rows_within_one_page_are_unchanged() -> None:
    values = np.arange(64, dtype=np.int64)
    discard(values, 0, 64)
    assert values.tolist() == list(range(64))


def test_objects_views_and_strided_arrays_are_unchanged() -> None:
    texts = np.array(["a"] * 10_000, object)
    whole = np.ones((10_000, 2))
    for values in (texts, whole[:, 0], whole[10:]):
        expected = values.copy()
        discard(values, 0, len(values))
        assert (values == expected).all()
