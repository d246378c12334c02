"""Mixes each row of a training's batch with another row of the batch: the images, and their classes likewise.

Zhang, Cisse, Dauphin and Lopez-Paz, "mixup: Beyond Empirical Risk Minimization" (2018). A row becomes s times itself
plus 1 - s times its partner, and has both classes, with the weights s and 1 - s. The share s is drawn from the Beta
distribution of (alpha, alpha), here for each row and not once for a batch.

Shares and partners follow from the seed of the training, the epoch and the rows of the batch alone. A batch is mixed
on the host before it is uploaded. So it is the same under every plan, for parts of a batch, on several devices, and
after a kill.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from indb_tensile.learning.networks.hyperparams import TrainingSettings
from indb_tensile.learning.storage.block_cache import Order, RowSource
from indb_tensile.learning.storage.seeded_draws import draw

Array = npt.NDArray[Any]

_SHARE, _PARTNER = 62, 63  # purposes of draws; those of augmentation.py for the first column of images are below 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixup:
    """How rows are mixed. A small `alpha` leaves most rows nearly as they are; 1 draws all shares alike."""

    seed: int
    alpha: float

    @classmethod
    def of(cls, settings: TrainingSettings) -> "Mixup | None":
        """Return what the settings of a training ask for, or None for rows that are not mixed."""
        return None if settings.mixup is None else cls(seed=settings.seed, alpha=settings.mixup)

    def shares(self, epoch: int, rows: Order) -> npt.NDArray[np.float32]:
        """Return the share of each row in what it becomes, from 0 to 1."""
        from scipy.special import betaincinv  # imported here, since most trainings mix no rows

        drawn = betaincinv(self.alpha, self.alpha, draw(self.seed, epoch, _SHARE, rows))
        shares: npt.NDArray[np.float32] = drawn.astype(np.float32)
        return shares

    def partners(self, epoch: int, rows: Order) -> Order:
        """Return the position in the batch of each row's partner. A row is its own partner only if it is alone.

        The rows form a circle in a random order, and the partner of a row is the next one.
        """
        circle = np.argsort(draw(self.seed, epoch, _PARTNER, rows), kind="stable")
        partners = np.empty(len(rows), np.int64)
        partners[circle] = np.roll(circle, -1)
        return partners


class _MixedRows:
    """Rows that are mixed in an epoch."""

    def __init__(self, rows: RowSource, mixup: Mixup) -> None:
        self._rows = rows
        self._mixup = mixup
        self.epoch = 0
        self.in_memory = rows.in_memory


class MixedInputs(_MixedRows):
    """The inputs of rows, mixed in an epoch."""

    def take(self, order: Order, out: Array) -> None:
        """Write the mixed rows at these positions to `out`, which is float32 (rows, *input_shape)."""
        self._rows.take(order, out)
        shares = self._mixup.shares(self.epoch, order).reshape(-1, *[1] * (out.ndim - 1))
        partners = out[self._mixup.partners(self.epoch, order)]
        out *= shares
        out += (1 - shares) * partners


class MixedTargets(_MixedRows):
    """The pairs of weighted classes of rows (packed_targets.py), mixed in an epoch as their inputs are."""

    def take(self, order: Order, out: Array) -> None:
        """Write the rows (class, weight, class of the partner, its weight) at these positions to `out`."""
        self._rows.take(order, out)
        shares = self._mixup.shares(self.epoch, order)
        out[:, 2:] = out[self._mixup.partners(self.epoch, order), :2]
        out[:, 1] *= shares
        out[:, 3] *= 1 - shares
