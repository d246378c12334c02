"""Networks of timm as trainings build them by name, for `tensile bench exact --kinds`, where timm is installed.

Each stands for a family: residual blocks, attention between patches, depthwise convolutions with batch normalisation,
and large kernels with normalised channels. Rows and blocks are left out at random, as trainings may ask for.
"""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from indb_tensile.learning.networks.architectures import build

SHAPE = (3, 32, 32)
_PACKAGES = ("timm", "torchvision")  # the extra `timm`
_NETWORKS: dict[str, dict[str, Any]] = {
    "resnet18": {"drop_path_rate": 0.2},
    "vit_tiny_patch16_224": {"drop_rate": 0.1, "drop_path_rate": 0.1},
    "mobilenetv3_small_050": {"drop_rate": 0.2},
    "convnext_atto": {"drop_path_rate": 0.2},
}


def missing_package() -> str | None:
    """Return the package without which no network of timm can be built, or None if all are installed."""
    return next((name for name in _PACKAGES if find_spec(name) is None), None)


def builders(outputs: int) -> dict[str, Callable[[], nn.Module]]:
    """Return a builder for each network by the name of its kind, or none where a package is missing."""
    if missing_package() is not None:
        return {}
    return {f"timm_{name}": partial(_network, name, options, outputs) for name, options in _NETWORKS.items()}


def _network(name: str, options: dict[str, Any], outputs: int) -> nn.Module:
    declared = {"type": "timm", "name": name, **options}
    return build(declared, SHAPE, outputs, seed=int(torch.randint(1 << 30, ())))
