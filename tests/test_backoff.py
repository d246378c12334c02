"""Pauses double up to a limit, and start again after a success."""

from indb_tensile.backoff import Backoff


def test_pauses_double_up_to_the_longest_and_start_again_after_a_success() -> None:
    backoff = Backoff(first_s=0.5, longest_s=3.0)
    assert [backoff.fail() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert backoff.failures == 5
    backoff.succeed()
    assert (backoff.failures, backoff.fail()) == (0, 0.5)
