"""A batch is divided into parts of nearly equal size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.errors import RequestError
from indb_tensile.executor.capture.passes import WHOLE, Passes


def test_a_batch_is_taken_whole_unless_it_is_larger_than_a_part() -> None:
    assert WHOLE.parts(7) == (range(7),)
    assert Passes(micro_batch_size=7).parts(7) == (range(7),)


def test_parts_are_nearly_equal_and_leave_no_single_row() -> None:
    assert Passes(micro_batch_size=3).parts(8) == (range(3), range(3, 6), range(6, 8))
    assert Passes(micro_batch_size=2).parts(3) == (range(3),)
    assert Passes(micro_batch_size=1).parts(2) == (range(1), range(1, 2))


@given(st.integers(1, 300), st.integers(1, 40))
def test_parts_cover_every_row_once_within_their_bound(rows: int, bound: int) -> None:
    parts = Passes(micro_batch_size=bound).parts(rows)
    assert [row for part in parts for row in part] == list(range(rows))
    sizes = {len(part) for part in parts}
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) <= bound + (bound == 2 and rows % 2)
    assert 1 not in sizes or bound == 1 or rows == 1


@pytest.mark.parametrize(
    ("options", "fault"),
    [({"micro_batch_size": 0}, "micro_batch_size 0"), ({"precision": "float16"}, "'float16' is unknown")],
)
def test_options_out_of_range_are_refused(options: dict[str, object], fault: str) -> None:
    with pytest.raises(RequestError, match=fault):
        Passes(**options)  # type: ignore[arg-type]
