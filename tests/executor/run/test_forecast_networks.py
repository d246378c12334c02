"""Networks that forecast have under tight plans the bits of unplanned training."""

from typing import Any

import pytest
import torch

from indb_tensile.learning.encoding.forecast_encoding import ForecastValues, PinballLoss
from indb_tensile.learning.networks import architectures
from indb_tensile.learning.networks.ensemble import EnsembleLoss
from tests.executor.capture.test_layers import require_eager_bits
from tests.nightly import nightly_unless

LAYOUT = {"numbers": 1, "categories": [3], "window": 8, "horizon": 4, "window_channels": 3, "targets": 2}
KINDS: dict[str, dict[str, Any]] = {
    "window_mlp": {"width": 8, "blocks": 1},
    "dlinear": {"kernel": 3},
    "tcn": {"channels": [4, 4]},
    "window_lstm": {"units": 4},
}


@pytest.mark.parametrize(
    ("kind", "ensemble"),
    nightly_unless(lambda case: case == ("window_mlp", 1), [(kind, count) for kind in KINDS for count in (1, 2)]),
)
def test_a_forecast_has_the_bits_of_eager_under_tight_plans(kind: str, ensemble: int) -> None:
    values = ForecastValues(horizon=4, targets=2, interval=0.8)
    architecture = {"type": kind, **KINDS[kind], **LAYOUT, "known": 1, "season": 4}
    width = 1 + 8 * 3 + 12 + 1
    module = architectures.build(architecture, (width,), 3 * values.count, ensemble=ensemble)
    x = torch.randn(3, width, generator=torch.Generator().manual_seed(0))
    x[:, -1] = torch.tensor([0.0, 1.0, 2.0])
    packed = torch.randn(3, 2 * values.count + 6, generator=torch.Generator().manual_seed(1))
    packed[:, values.count : 2 * values.count] = 1.0
    loss = PinballLoss(values)
    require_eager_bits(module, x, packed, EnsembleLoss(loss) if ensemble > 1 else loss)
