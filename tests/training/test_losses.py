"""The mean loss of an epoch is computed with one read of each loss."""

import math
from typing import Any, cast

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


def test_an_epoch_without_batches_has_no_mean() -> None:
    assert math.isnan(Losses().mean())
