"""Check which networks refuse batches of one row."""

from typing import Any

import pytest

from indb_tensile.errors import RequestError
from indb_tensile.request.batch_rules import check_batch_sizes


@pytest.mark.parametrize(
    ("architecture", "images", "remedy"),
    [
        ({"type": "mlp", "batch_norm": True}, False, 'train without: {"type": "mlp", "batch_norm": false}'),
        ({"type": "cnn"}, False, 'train without: {"type": "cnn", "batch_norm": false}'),
        ({"type": "resnet"}, True, "train a network without, such as vit"),
        ({"type": "auto"}, True, "train a network without, such as vit"),
        ({"type": "wide_and_deep"}, True, 'set "image_encoder" to vit'),
        ({"type": "tabm", "image_encoder": "convolution"}, True, 'set "image_encoder" to vit'),
        (
            {"type": "layers", "layers": [{"type": "residual", "layers": [{"type": "batch_norm1d"}]}]},
            False,
            "leave the layers batch_norm1d and batch_norm2d out",
        ),
    ],
)
@pytest.mark.parametrize("name", ["batch_size", "micro_batch_size"])
def test_batches_of_one_row_are_refused_where_they_would_be_normalised(
    architecture: dict[str, Any], images: bool, remedy: str, name: str
) -> None:
    check_batch_sizes(architecture, {name: 2}, images=images)
    with pytest.raises(RequestError) as caught:
        check_batch_sizes(architecture, {name: 1}, images=images)
    kind = architecture["type"]
    assert caught.value.message == f'hyperparams: "{name}" is 1, and architecture {kind} has batch normalisation'
    assert caught.value.hint == f'Set "{name}" to 2 or more, or {remedy}.'


@pytest.mark.parametrize(
    ("architecture", "images"),
    [
        ({"type": "mlp"}, False),
        ({"type": "cnn", "batch_norm": False}, True),
        ({"type": "auto"}, False),
        ({"type": "wide_and_deep"}, False),
        ({"type": "wide_and_deep", "image_encoder": "vit"}, True),
        ({"type": "vit"}, True),
        ({"type": "layers", "layers": [{"type": "layer_norm"}, {"type": "linear"}]}, False),
        ({"type": "boosting"}, False),
    ],
)
def test_batches_of_one_row_are_allowed_elsewhere(architecture: dict[str, Any], images: bool) -> None:
    check_batch_sizes(architecture, {"batch_size": 1, "micro_batch_size": 1}, images=images)
