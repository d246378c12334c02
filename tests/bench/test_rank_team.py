"""Of the errors of several ranks, the one is raised from which the others follow."""

from collections.abc import Callable
from typing import Any

import pytest

from indb_tensile.bench.harness.comparisons import rank_team
from indb_tensile.bench.harness.comparisons.rank_contenders import RankMethod
from indb_tensile.bench.harness.comparisons.rank_team import RankTeam
from indb_tensile.errors import MemoryLimitError, RankLostError
from tests.bench.subjects import Tiny


class _Rank:
    """Stands for the process of a rank. `outcomes` has what each rank returns or raises, by number."""

    outcomes: tuple[Any, ...] = ()

    def __init__(self, _: object, __: object, task: Any) -> None:
        self._number = task.share.rank

    def ask(self, function: Callable[..., Any], *_: object) -> Any:
        outcome = self.outcomes[self._number] if function is rank_team._plan else None
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def __exit__(self, *_: object) -> None:
        pass


def _planned(monkeypatch: pytest.MonkeyPatch, *outcomes: Any) -> list[Any]:
    monkeypatch.setattr(_Rank, "outcomes", outcomes)
    monkeypatch.setattr(rank_team, "ContenderProcess", _Rank)
    with RankTeam(Tiny(), ranks=len(outcomes), parts=len(outcomes)) as team:
        return team.plan(RankMethod(name="exact"))


def test_the_answers_are_in_the_order_of_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _planned(monkeypatch, "first", "second", "third") == ["first", "second", "third"]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_rank_that_lost_another_one_does_not_hide_why_that_one_ended(
    monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    outcomes: list[Exception] = [RankLostError("the other rank is gone")] * 3
    outcomes[place] = MemoryLimitError("the plan needs more memory")
    with pytest.raises(MemoryLimitError, match="needs more memory"):
        _planned(monkeypatch, *outcomes)


def test_ranks_that_only_lost_each_other_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RankLostError, match="gone"):
        _planned(monkeypatch, RankLostError("gone"), "fine")
