"""Check that ranks notice who does not know the secret of their attempt."""

import pytest

from indb_tensile.errors import RankLostError
from indb_tensile.executor.ranks.rank_group import RankGroup
from indb_tensile.executor.ranks.rank_proof import prove_ranks
from tests.executor.ranks.rank_threads import on_ranks

SECRET = b"known to the workers"


def proven(group: RankGroup, secret: bytes, attempt: str = "7") -> str:
    """Return what the rank finds out about the others."""
    try:
        prove_ranks(group, secret, attempt=attempt)
    except RankLostError as error:
        return error.message
    return "proven"


def test_ranks_with_one_secret_are_proven() -> None:
    assert on_ranks(3, lambda rank, group: proven(group, SECRET)) == ["proven"] * 3


def test_every_rank_notices_a_stranger_without_the_secret() -> None:
    def run(rank: int, group: RankGroup) -> str:
        return proven(group, b"guessed" if rank == 2 else SECRET)

    assert on_ranks(4, run) == [
        "rank 0 of 4 is connected to a stranger in place of rank 2",
        "rank 1 of 4 is connected to a stranger in place of rank 2",
        "rank 2 of 4 is connected to a stranger in place of rank 0",
        "rank 3 of 4 is connected to a stranger in place of rank 2",
    ]


def test_proof_of_another_attempt_is_refused() -> None:
    messages = on_ranks(2, lambda rank, group: proven(group, SECRET, attempt=str(rank)))
    assert messages == [
        "rank 0 of 2 is connected to a stranger in place of rank 1",
        "rank 1 of 2 is connected to a stranger in place of rank 0",
    ]


@pytest.mark.parametrize("ranks", [2, 3])
def test_answer_of_one_rank_is_no_answer_of_another(ranks: int) -> None:
    """Who sends every challenge back as it came, proves nothing."""

    class Mirror:
        """A group that sends back what it was sent."""

        def size(self) -> int:
            return ranks

        def rank(self) -> int:
            return 0

        def alltoall_base(self, received: object, sent: object, *sizes: object) -> "Mirror":
            received.copy_(sent)  # type: ignore[attr-defined]
            return self

        def wait(self) -> None:
            """The exchange has ended."""

    message = proven(Mirror(), SECRET)  # type: ignore[arg-type]
    assert message == f"rank 0 of {ranks} is connected to a stranger in place of rank 1"
