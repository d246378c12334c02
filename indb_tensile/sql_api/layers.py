"""Checks the type and the parameters of each layer of a network; a worker checks that the layers fit together."""

from collections.abc import Sequence
from typing import Any

from .errors import INVALID, RefusalError, shown
from .options import DEEPEST_LAYERS, LAYERS, MOST_LAYERS
from .parameters import check_parameters


def check_layers(layers: Sequence[Any]) -> None:
    """Refuse a list that is empty or too long, and a layer with an unknown type or an invalid parameter."""
    if not layers:
        raise RefusalError(
            INVALID, "architecture: the list of layers is empty", hint='End it with {"type": "linear"}.'
        )
    count = _check_level(layers, "layer", 0)
    if count > MOST_LAYERS:
        raise RefusalError(
            INVALID, f"architecture: {count} layers are more than {MOST_LAYERS}", hint="Give fewer layers."
        )


def _check_level(layers: Sequence[Any], where: str, depth: int) -> int:
    """Return the number of layers on all levels. Layers count from 0, as in a worker's messages."""
    if depth > DEEPEST_LAYERS:
        message = f"architecture: {where} nests residual layers more than {DEEPEST_LAYERS} deep"
        raise RefusalError(INVALID, message, hint="Nest them less deep.")
    count = len(layers)
    for position, layer in enumerate(layers):
        title = f"architecture: {where} {position}"
        kind = layer.get("type") if isinstance(layer, dict) else None
        if not isinstance(kind, str) or kind not in LAYERS:
            hint = f"Known types: {', '.join(LAYERS)}."
            raise RefusalError(INVALID, f"{title} is {shown(layer)}, whose type is not known", hint=hint)
        options = {name: value for name, value in layer.items() if name != "type"}
        values = check_parameters(f"{title} ({kind})", options, LAYERS[kind])
        if kind == "residual":
            count += _check_level(values["layers"], f"{where} {position}.", depth + 1)
        elif kind in ("lstm", "gru") and values.get("dropout") and values.get("layers", 1) == 1:
            hint = 'Give it more "layers", or add a dropout layer after it.'
            message = f'{title} ({kind}): "dropout" acts between layers, and there is one'
            raise RefusalError(INVALID, message, hint=hint)
    return count
