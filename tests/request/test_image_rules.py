"""Check which networks refuse rows that are no images."""

import pytest

from indb_tensile.errors import RequestError
from indb_tensile.request.image_rules import check_rows_are_images


@pytest.mark.parametrize("kind", ["cnn", "resnet", "vit", "timm"])
def test_a_network_of_images_refuses_columns_without_an_image(kind: str) -> None:
    for kinds in (["float", "text"], ["float"], ["array", "array"], ["array", "float"]):
        with pytest.raises(RequestError) as caught:
            check_rows_are_images({"type": kind}, kinds)
        assert (
            caught.value.message
            == f"architecture {kind} reads an image, and none of the {len(kinds)} features is one"
        )
        assert f'{{"type": "{kind}", "input_shape": [1, 28, 28]}}' in caught.value.hint


def test_images_arrays_and_pixels_of_a_given_shape_are_left_to_the_worker() -> None:
    for kinds in (["image"], ["image", "float"], ["array"]):
        check_rows_are_images({"type": "cnn"}, kinds)
    check_rows_are_images({"type": "cnn", "input_shape": [1, 2, 2]}, ["float"] * 4)
    check_rows_are_images({"type": "mlp"}, ["float", "text"])
    check_rows_are_images({"type": "auto"}, ["float"])
