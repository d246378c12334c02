"""Refuses to publish a network that diverged, since it would answer every row with NaN."""

from collections.abc import Mapping

import torch

from indb_tensile.errors import RequestError


def require_finite(
    module: torch.nn.Module, weights: Mapping[str, torch.Tensor], *, epoch: int, learning_rate: float
) -> None:
    """Raise RequestError if the weights of a module after this epoch, counted from 1, are not finite.

    In a buffer, which nothing trains, infinity is a valid value, as in a mask.
    """
    buffers = {name for name, _ in module.named_buffers()}
    for name, tensor in weights.items():
        if not tensor.is_floating_point():
            continue
        valid = ~tensor.isnan() if name in buffers else tensor.isfinite()
        if not valid.all():
            smaller = f'hyperparams => \'{{"learning_rate": {learning_rate / 10:g}, "clip_norm": 1}}\''
            raise RequestError(
                f"the training diverged: after epoch {epoch} the weights are not finite",
                detail="The network would answer every row with NaN, so it is not published.",
                hint=f"Train with a learning_rate below {learning_rate:g} and with bounded gradients: {smaller}.",
            )
