"""Jobs that train in a round have the bits of the same jobs alone, and together keep to less than their blocks."""

import pytest

from tests.device.preloaded import ask

_MEMBER = {"bits": True, "beyond its base": True, "at planned addresses": True, "nothing lent": True}


@pytest.mark.nightly
@pytest.mark.parametrize("device", ["emulated", "cpu"])
def test_members_of_a_round_train_bit_for_bit_in_less_memory_than_their_blocks(device: str) -> None:
    assert _asked(device) == _answer(members=3)


def test_members_go_on_when_one_is_killed_inside_an_iteration() -> None:
    assert _asked("killed") == _answer(members=2)


@pytest.mark.nightly
def test_nobody_waits_for_a_member_that_does_other_work_between_its_iterations() -> None:
    assert _asked("resting") == _answer(members=3)


def _asked(name: str) -> dict[str, object]:
    answers = ask("tests.executor.run.round_process", name)
    return {key: value for key, value in answers.items() if key != "stderr"}


def _answer(*, members: int) -> dict[str, object]:
    return {"members": [_MEMBER] * members, "within the budget": True, "less than the blocks": True, "gates": True}
