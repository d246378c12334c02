"""Rows are decoded once on threads, those that are waited for first, and faults reach whoever waits."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.errors import DataError, InvariantError
from indb_tensile.learning.storage.background_decoding import BackgroundDecoding, Numbers
from tests.nightly import some_examples

ROWS = 300
NOTHING = np.empty(0, np.int64)


class Decoder:
    """Counts how often each row is decoded. Rows that are `faulty` cannot be."""

    def __init__(self, faulty: set[int]) -> None:
        self.times = np.zeros(ROWS, np.int64)
        self._faulty = faulty

    def decode(self, numbers: Numbers) -> bool:
        self.times[numbers] += 1
        return not self._faulty.isdisjoint(numbers.tolist())

    def fault(self, *, complete: bool) -> Exception:
        return DataError(f"rows {sorted(self._faulty)}, {complete}")


class Failing(Decoder):
    """Cannot decode at all."""

    def decode(self, numbers: Numbers) -> bool:
        raise OSError("the file is gone")


class Held(Decoder):
    """Decodes nothing before it is started."""

    def __init__(self) -> None:
        super().__init__(set())
        self.start = threading.Event()

    def decode(self, numbers: Numbers) -> bool:
        self.start.wait()
        return super().decode(numbers)


class Faulty:
    """Cannot decode row 0, which a thread takes first. Another decoder decodes all other rows."""

    def __init__(self, others: Decoder) -> None:
        self._others = others

    def decode(self, numbers: Numbers) -> bool:
        return 0 in numbers or self._others.decode(numbers)

    def fault(self, *, complete: bool) -> Exception:
        return DataError(f"rows, {complete}")


rows = st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=40).map(lambda numbers: np.array(numbers, np.int64))


@some_examples()
@given(st.lists(rows, max_size=12), rows, st.integers(1, 4))
def test_each_row_is_decoded_once_and_before_a_wait_for_it_ends(
    waits: list[Numbers], decoded: Numbers, threads: int
) -> None:
    decoder = Decoder(set())
    decoding = BackgroundDecoding(decoder, ROWS, decoded, threads)

    def wait(numbers: Numbers) -> bool:
        decoding.require(numbers)
        own = np.setdiff1d(numbers, decoded)
        return bool((decoder.times[own] == 1).all())

    with ThreadPoolExecutor(max_workers=3) as waiting:
        assert all(waiting.map(wait, waits))
    decoding.finish()
    expected = np.ones(ROWS, np.int64)
    expected[decoded] = 0
    assert np.array_equal(decoder.times, expected)


@some_examples()
@given(st.sets(st.integers(0, ROWS - 1), min_size=1, max_size=4), rows)
def test_a_wait_raises_the_error_of_all_rows_and_all_others_are_tried(faulty: set[int], wanted: Numbers) -> None:
    decoder = Decoder(faulty)
    decoding = BackgroundDecoding(decoder, ROWS, NOTHING, threads=2)
    if not faulty.isdisjoint(wanted.tolist()):
        with pytest.raises(DataError) as caught:
            decoding.require(wanted)
        assert caught.value.message == f"rows {sorted(faulty)}, True"
    for _ in range(2):
        with pytest.raises(DataError):
            decoding.finish()
    assert (decoder.times == 1).all()


def test_the_error_does_not_wait_for_all_other_rows() -> None:
    decoder = Held()
    decoding = BackgroundDecoding(Faulty(decoder), ROWS, NOTHING, threads=2, naming_s=0)
    with pytest.raises(DataError, match="rows, False"):
        decoding.require(np.array([0]))
    decoder.start.set()
    with pytest.raises(DataError, match="rows, False"):
        decoding.finish()
    decoding.close()


def test_signs_of_life_are_given_while_the_last_rows_are_decoded() -> None:
    decoder = Held()
    decoding = BackgroundDecoding(decoder, ROWS, NOTHING, threads=2)
    decoding.finish(decoder.start.set)
    assert (decoder.times == 1).all()


def test_only_rows_that_are_waited_for_are_decoded_while_others_are_paused() -> None:
    decoder = Held()
    decoding = BackgroundDecoding(decoder, ROWS, NOTHING, threads=1)
    with decoding.paused():
        decoder.start.set()
        decoding.require(np.array([200, 299]))
        first = np.flatnonzero(decoder.times).tolist()
        decoding.require(np.array([250]))
        # The thread may have taken the first other rows before it was paused.
        assert first in ([200, 299], [*range(8), 200, 299])
        assert np.flatnonzero(decoder.times).tolist() == sorted([*first, 250])
    decoding.finish()
    assert (decoder.times == 1).all()


def test_a_failure_of_a_thread_reaches_whoever_waits() -> None:
    decoding = BackgroundDecoding(Failing(set()), ROWS, NOTHING, threads=2)
    with pytest.raises(OSError, match="the file is gone"):
        decoding.finish()


def test_rows_that_are_not_decoded_cannot_be_read_after_the_end() -> None:
    decoder = Held()
    decoding = BackgroundDecoding(decoder, ROWS, NOTHING, threads=2)
    with decoding.paused():
        decoder.start.set()
        decoding.require(np.arange(200, 210))
        decoding.close()
    decoding.require(np.arange(200, 210))
    with pytest.raises(InvariantError, match="rows are read whose decoding has been ended"):
        decoding.require(np.arange(ROWS))
    complete = BackgroundDecoding(Decoder(set()), ROWS, NOTHING, threads=2)
    complete.finish()
    complete.close()
    complete.require(np.arange(ROWS))
