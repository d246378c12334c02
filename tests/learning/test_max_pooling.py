"""Check that pooling of many rows has the results of torch's layer."""

import pytest
import torch
from torch import nn

from indb_tensile.learning.networks.max_pooling import pooling


@pytest.mark.parametrize("rows", [1, 15, 16, 70])
@pytest.mark.parametrize("shape", [(8, 8), (7, 5), (2, 3)])
@pytest.mark.parametrize(
    "layer",
    [
        nn.MaxPool2d(2),
        nn.MaxPool2d((2, 2), (2, 2)),
        nn.MaxPool2d(2, 1),
        nn.MaxPool2d(2, padding=1),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.MaxPool2d((1, 2)),
        nn.MaxPool2d(2, dilation=1, stride=(2, 1)),
    ],
    ids=str,
)
def test_results_are_those_of_the_layer(layer: nn.MaxPool2d, shape: tuple[int, int], rows: int) -> None:
    x = torch.randn(rows, 3, *shape, generator=torch.Generator().manual_seed(rows))
    x[0, 0, 0, 0], x[0, 1, 0, 1], x[-1, 2, 1, 1] = torch.nan, torch.inf, -torch.inf
    torch.testing.assert_close(pooling(layer)(x), layer(x), rtol=0, atol=0, equal_nan=True)


def test_squares_of_many_rows_are_not_pooled_by_torchs_layer() -> None:
    class Unused(nn.MaxPool2d):
        def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - the name in torch
            raise AssertionError

    x = torch.arange(16.0 * 4).reshape(16, 1, 2, 2)
    assert pooling(Unused(2))(x).flatten().tolist() == [4.0 * row + 3 for row in range(16)]
