"""Check how sizes in bytes are written for people."""

import pytest

from indb_tensile.sizes import compared, size


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 kB"),
        (1536 * 1024, "1.5 MB"),
        (2**31, "2.00 GB"),
        (2**41, "2048.00 GB"),
    ],
)
def test_sizes_are_in_units_of_1024(size_bytes: int, text: str) -> None:
    assert size(size_bytes) == text


def test_sizes_that_round_to_the_same_text_are_written_in_bytes() -> None:
    assert compared(600, 1024) == ("600 B", "1.0 kB")
    assert compared(2**20 + 1, 2**20) == ("1048577 B", "1048576 B")
    assert compared(2**20, 2**20) == ("1.0 MB", "1.0 MB")
