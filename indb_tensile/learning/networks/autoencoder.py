"""The network of anomalies: an autoencoder that returns how badly it reconstructs each column, and how far it is out.

A narrow layer in its middle keeps what rows have in common (Hinton and Salakhutdinov 2006), and a share of the inputs
is hidden while it trains (Vincent and others 2008), so that a value is told from the other columns of its row and
not copied. A row whose columns are extreme together is reconstructed well, and may be odd all the same. So each
column has a second error: its squared distance from a centre. The centre is learned as well; it is the reconstruction
of a row of which nothing is known.

The outputs are errors, and not the reconstruction: the targets of a training then need no second copy of the rows.
"""

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import cast

import torch
from torch import Tensor, nn

from indb_tensile.errors import RequestError
from indb_tensile.learning.networks.layers import ACTIVATION_MODULES

# The code is the narrowest layer of the autoencoder. Its default width was chosen by `bench anomalies`: a wider code
# also reconstructs anomalies. It has a unit for each 32 numbers of a row, at least two for rows of more than 8
# numbers, and at most 16.
_LARGEST_CODE = 16
_NARROW = 8
_NUMBERS_OF_CODE = 32


class Autoencoder(nn.Module):
    """Maps encoded rows (batch, width) to the squared errors of their parts (batch, 2 * parts).

    The errors of the reconstruction are before the distances from the centre. A part is what one column, or the
    indicator of its missing values, has become: `widths` numbers each. Its error is the sum over them, divided by its
    divisor. Parts of one number come first in a row.
    """

    def __init__(
        self,
        width: int,
        widths: Sequence[int],
        divisors: Sequence[int],
        *,
        hidden: Sequence[int],
        code: int | None,
        noise: float,
        activation: str,
    ) -> None:
        super().__init__()
        if sum(widths) != width or len(widths) != len(divisors):
            raise RequestError(
                f'architecture autoencoder: "widths" are {sum(widths)} numbers in all, and a row has {width}',
                hint='Leave "widths" and "divisors" out: they follow from the columns.',
            )
        self.singles = next((place for place, own in enumerate(widths) if own > 1), len(widths))
        self.wider = [
            (end - own, end, divisor) for own, end, divisor in zip(widths, accumulate(widths), divisors, strict=True)
        ][self.singles :]
        middle = _default_code(width) if code is None else code
        layers: list[nn.Module] = [nn.Dropout(noise)] if noise else []
        for own, following in pairwise((width, *hidden)):
            layers += [nn.Linear(own, following), ACTIVATION_MODULES[activation]()]
        # The code is linear: a code of few rectified units may be zero for all rows, and then learns nothing.
        layers.append(nn.Linear(hidden[-1] if hidden else width, middle))
        for own, following in pairwise((middle, *reversed(hidden))):
            layers += [nn.Linear(own, following), ACTIVATION_MODULES[activation]()]
        self.network = nn.Sequential(*layers, nn.Linear(hidden[0] if hidden else middle, width))
        self.centre = nn.Parameter(torch.zeros(width))

    def reset_parameters(self) -> None:
        """Begin with the centre of standardised numbers."""
        nn.init.zeros_(self.centre)

    def forward(self, x: Tensor) -> Tensor:
        """Return both errors of each part of each row."""
        return torch.cat([*self._errors(cast(Tensor, self.network(x)), x), *self._errors(self.centre, x)], dim=1)

    def _errors(self, expected: Tensor, x: Tensor) -> list[Tensor]:
        errors = torch.square(expected - x)
        parts = [errors[:, begin:end].sum(dim=1, keepdim=True) / divisor for begin, end, divisor in self.wider]
        return [errors[:, : self.singles], *parts] if self.singles else parts


def _default_code(width: int) -> int:
    return max(1 if width <= _NARROW else 2, min(_LARGEST_CODE, math.ceil(width / _NUMBERS_OF_CODE)))


class ReconstructionLoss(nn.Module):
    """The mean over all errors e of 2 (sqrt(1 + e) - 1), the loss of Charbonnier and others (1997).

    It is e for small errors and grows as its root for large ones, so that the anomalies among the training rows,
    whose errors are large, hardly change the weights. Labels take no part.
    """

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean for outputs (rows, parts)."""
        errors = 2.0 * (torch.sqrt(1.0 + outputs.float()) - 1.0)
        return errors.mean() + 0.0 * labels.float().sum()
