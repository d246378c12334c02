"""The rate falls as `ReduceLROnPlateau` lowers it, and a stored state continues with the same rates."""

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.errors import DataError, RequestError
from indb_tensile.job import Task
from indb_tensile.learning.training.plateau import Plateau
from indb_tensile.learning.training.preparation import assemble
from tests.learning.tables import spec, table


@given(st.lists(st.sampled_from([3.0, 2.0, 1.99999, 1.0, 0.5, math.inf]), max_size=30), st.integers(0, 3))
def test_the_rate_falls_when_torch_lowers_it(losses: list[float], patience: int) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    torchs = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=patience, eps=0.0)
    state = Plateau()
    for loss in losses:
        state = state.observe(loss, patience)
        torchs.step(loss)
        assert optimizer.param_groups[0]["lr"] == 0.5**state.reductions
        state = Plateau.from_json(json.loads(json.dumps(state.to_json())))


def test_negative_losses_that_fall_are_improvements() -> None:
    state = Plateau().observe(-5.0, 0).observe(-5.0, 0).observe(-5.1, 0)
    assert state == Plateau(best=-5.1, stale_epochs=0, reductions=1)
    assert Plateau().observe(math.nan, 3) == Plateau(stale_epochs=1)


def test_a_training_without_validation_rows_is_refused() -> None:
    few = table([("a", "double precision"), ("y", "double precision")], [(1.0, 1.0), (2.0, 2.0), (3.0, 4.0)])
    with pytest.raises(DataError, match="validation part, which schedule plateau needs") as caught:
        assemble(few, spec("y", Task.REGRESSION, hyperparams={"schedule": "plateau"}))
    assert "valid_size" in caught.value.hint
    with pytest.raises(RequestError, match="schedule plateau needs validation rows, and the split's valid_size is 0"):
        assemble(few, spec("y", Task.REGRESSION, hyperparams={"schedule": "plateau"}, split={"valid_size": 0}))
