"""The mean loss of an epoch is computed with one read of each loss."""

import json
import math
import struct
from typing import Any, cast

import pytest
import torch

from worker.training.losses import Losses


class Counted:
    """A loss that counts its reads."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.reads = 0

    def __float__(self) -> float:
        self.reads += 1
        return self.value


def test_each_loss_is_read_once_for_any_number_of_means() -> None:
    losses, counted, means = Losses(), [Counted(float(n)) for n in range(50)], []
    for loss in counted:
        losses.add(cast("Any", loss), 4)
        means.append(losses.mean())
    assert means == [n / 2 for n in range(50)]
    assert {loss.reads for loss in counted} == {1}


@pytest.mark.parametrize("values", [[0.1, 0.7, 1e-9], [math.nan], [math.inf, 2.0], []])
def test_sums_continue_from_a_checkpoint_with_every_bit(values: list[float]) -> None:
    whole, first = Losses(), Losses()
    for value in values:
        whole.add(torch.tensor(value), 3)
        first.add(torch.tensor(value), 3)
    second = Losses.from_json(json.loads(json.dumps(first.to_json(), allow_nan=False)))
    for losses in (whole, second):
        losses.add(torch.tensor(0.3), 2)
    assert struct.pack("d", second.mean()) == struct.pack("d", whole.mean())


def test_an_epoch_without_batches_has_no_mean() -> None:
    assert math.isnan(Losses().mean())
