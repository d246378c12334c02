"""Check how the controller plays the parts of trainers that do not iterate in their round."""

from collections.abc import Iterator

import pytest

from indb_tensile import _native
from indb_tensile.controller.round_players import RoundPlayers
from indb_tensile.device.ledger import Ledger
from indb_tensile.job import Slot
from indb_tensile.scheduler.admission.pool import TrainerId
from indb_tensile.scheduler.phases.round_part import RoundPart, Segment, Wait
from tests.native.ledger_trainers import wait_until

REGION = 4096


@pytest.fixture
def passages() -> Iterator[_native.Passages]:
    with Ledger.create(REGION, REGION, 10**9, 10**9, None) as ledger:
        yield _native.Passages(ledger.fd)


def _part(position: int, *waits: Wait) -> RoundPart:
    return RoundPart(
        position=position,
        operators=4,
        iterations=1,
        base_bytes=REGION,
        region_bytes=REGION,
        segments=(Segment(operator=0), Segment(operator=2, taken=(0,))),
        waits=waits,
    )


def test_part_is_played_from_where_it_stopped_and_as_far_as_its_gates_allow(passages: _native.Passages) -> None:
    players = RoundPlayers(passages)
    gate = Wait(iteration=0, operator=2, position=1, boundary=0, each=4)  # from its second iteration on
    slots = {TrainerId(8): Slot(3), TrainerId(9): Slot(5)}
    players.begin(2, slots, (_part(0, gate), _part(1)))
    passages.advance(3, 2, 2)
    players.play(TrainerId(8))
    wait_until(lambda: passages.progress(3) == (2, 6), goal="the part to come to the shut gate")
    passages.advance(5, 2, 4)
    wait_until(lambda: passages.progress(3) == (2, 10), goal="the part to come to the next shut gate")
    players.end()
    assert passages.is_over(2)
    assert not players.has(TrainerId(8))


def test_part_that_never_began_is_played_from_its_start(passages: _native.Passages) -> None:
    players = RoundPlayers(passages)
    passages.advance(0, 1, 99)  # in an earlier round
    players.begin(2, {TrainerId(1): Slot(0), TrainerId(2): Slot(1)}, (_part(0), _part(1)))
    players.play(TrainerId(1))
    wait_until(lambda: passages.progress(0) >= (2, 8), goal="two iterations")
    players.end()
    players.end()
