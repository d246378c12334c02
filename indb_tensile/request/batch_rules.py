"""Which sizes of batches a network can learn from: batch normalisation needs two rows or more."""

from collections.abc import Mapping
from typing import Any

from ..errors import RequestError
from .network_rules import ARCHITECTURES

ONE_ROW_DETAIL = "Batch normalisation cannot learn from a single row."
_SIZES = ("batch_size", "micro_batch_size")


def check_batch_sizes(architecture: Mapping[str, Any], hyperparams: Mapping[str, Any], *, images: bool) -> None:
    """Raise RequestError for batches, or parts of them, of one row if the network surely normalises over the batch.

    `images`: columns hold images. The worker checks networks whose layers follow from the rows or from a library.
    """
    for name in _SIZES:
        if hyperparams.get(name) == 1 and (
            has_batch_normalisation(architecture) or (images and _encodes(architecture))
        ):
            raise RequestError(
                f'hyperparams: "{name}" is 1, and architecture {architecture["type"]} has batch normalisation',
                detail=ONE_ROW_DETAIL,
                hint=f'Set "{name}" to 2 or more, or {_remedy(architecture)}.',
            )


def has_batch_normalisation(architecture: Any) -> bool:
    """Return whether the network, as the request describes it, surely has batch normalisation."""
    if isinstance(architecture, list):
        return any(map(has_batch_normalisation, architecture))
    if not isinstance(architecture, Mapping):
        return False
    kind = architecture.get("type")
    if kind in ("resnet", "batch_norm1d", "batch_norm2d") or architecture.get("batch_norm", kind == "cnn") is True:
        return True
    return any(map(has_batch_normalisation, architecture.values()))


def _encodes(architecture: Mapping[str, Any]) -> bool:
    """Return whether the network encodes columns of images by layers that have batch normalisation."""
    kind = architecture["type"]
    rule = ARCHITECTURES[kind].get("image_encoder")
    return kind == "auto" or (rule is not None and architecture.get("image_encoder", rule["default"]) != "vit")


def _remedy(architecture: Mapping[str, Any]) -> str:
    """Return what makes the network one without batch normalisation."""
    kind = architecture["type"]
    if "batch_norm" in ARCHITECTURES[kind]:
        return f'train without: {{"type": "{kind}", "batch_norm": false}}'
    if kind == "layers":
        return "leave the layers batch_norm1d and batch_norm2d out"
    if "image_encoder" in ARCHITECTURES[kind]:
        return 'set "image_encoder" to vit'
    return "train a network without, such as vit"
