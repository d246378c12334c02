"""The last hidden representation of rows: the input of the last layer of a network."""

from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from indb_tensile.errors import RequestError
from indb_tensile.learning.networks.ensemble import Ensemble

Float32 = npt.NDArray[np.float32]

MOST_NUMBERS = 16_000  # longest embedding: PostgreSQL and pgvector store no wider vectors of single precision
MOST_ROWS = 1024  # most rows of one pass


class HiddenRows:
    """Computes the representation of encoded rows. Thread-safe: one pass at a time.

    `module` is a network of its own in evaluation mode, since a hook is added to its last layer with weights. Of an
    ensemble the representations of all members follow one another. Where members share their layers (TabM), or a row
    is a sequence, the representation is the mean over them. A pass has at most `rows` rows.
    """

    def __init__(self, module: nn.Module, input_shape: tuple[int, ...], rows: int = MOST_ROWS) -> None:
        self._rows = rows
        networks = list(module.members) if isinstance(module, Ensemble) else [module]
        self._lock = Lock()
        self._networks = [(network, _Tap(network, input_shape)) for network in networks]

    def __call__(self, x: Float32) -> Float32:
        """Return the representation of each row: (rows, numbers)."""
        with self._lock, torch.inference_mode():
            step = self._rows
            parts = [self._pass(torch.from_numpy(x[start : start + step])) for start in range(0, len(x), step)]
        whole = np.concatenate(parts)
        if whole.shape[1] > MOST_NUMBERS:
            raise RequestError(
                f"the network's last hidden layer has {whole.shape[1]} numbers, more than {MOST_NUMBERS}",
                hint="Train a network whose last hidden layer is narrower.",
            )
        return whole

    def _pass(self, x: Tensor) -> Float32:
        hidden = []
        for network, tap in self._networks:
            network(x)
            hidden.append(tap.taken())
        joined: Float32 = torch.cat(hidden, dim=1).float().numpy()
        return joined


class _Tap:
    """Keeps the input of a network's last layer with weights. A pass with zeros shows which layer that is."""

    def __init__(self, network: nn.Module, input_shape: tuple[int, ...]) -> None:
        self._input: Tensor | None = None
        called: list[nn.Module] = []
        leaves = [part for part in network.modules() if next(part.parameters(recurse=False), None) is not None]
        hooks = [leaf.register_forward_pre_hook(lambda own, _: called.append(own)) for leaf in leaves]
        with torch.inference_mode():
            network(torch.zeros((2, *input_shape)))
        if not called:
            raise RequestError("the network has no layer with weights, and so no embeddings")
        for hook in hooks:
            hook.remove()
        called[-1].register_forward_pre_hook(self._keep)

    def _keep(self, _: nn.Module, arguments: tuple[Any, ...]) -> None:
        self._input = arguments[0]

    def taken(self) -> Tensor:
        """Return the last input: (rows, numbers)."""
        assert self._input is not None
        hidden, self._input = self._input, None
        return hidden if hidden.dim() == 2 else hidden.flatten(1, -2).mean(dim=1)
