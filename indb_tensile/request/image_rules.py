"""Decides which bytes count as an image, how large one may be, and which networks read images.

The rules need the first bytes of a value only: nothing here decodes an image.
"""

from collections.abc import Sequence
from typing import Any

from ..errors import RequestError
from .abbreviation import shown
from .network_rules import IMAGE_ARCHITECTURES, PAIR_ARCHITECTURES, TABLE_ARCHITECTURES
from .parameter_rules import Json

IMAGE = "image"  # the encoding, and the kind of a column of bytea
FORMATS = ("PNG", "JPEG", "WebP", "BMP", "GIF", "TIFF")
MOST_IMAGE_BYTES = 64 << 20  # largest size of an image; photographs have a tenth of that
MOST_PIXELS = 50_000_000  # decoded, an image of so many takes 200 MB
HEAD_BYTES = 12  # first bytes of a value that tell its format: as many as the longest signature needs
LONGEST_CHOSEN_SIDE = 128  # largest side of the size that is chosen from the images of a column
OPTIONS = ("size", "channels", "resize", "on_error")
CHANNELS = {"grey": 1, "rgb": 3}
AUGMENTATIONS = ("augment_flip", "augment_shift", "augment_rotation", "augment_color", "augment_cutout")
_STARTS = (
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"\xff\xd8\xff", "JPEG"),
    (b"BM", "BMP"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
)


def format_of(head: bytes) -> str | None:
    """Return the format of the image that starts with these bytes, or None for other bytes."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WebP"
    return next((name for start, name in _STARTS if head.startswith(start)), None)


def image_kinds() -> tuple[str, ...]:
    """Return the networks that read images."""
    return ("auto", "cnn", *IMAGE_ARCHITECTURES, "mlp", "layers", *TABLE_ARCHITECTURES, *PAIR_ARCHITECTURES)


def check_images(architecture: Json, preprocess: Json, images: int, others: int, hyperparams: Json) -> None:
    """Raise RequestError for images that the network does not read.

    `images` and `others` count the features that are images, and those that are not. The other arguments have been
    checked.
    """
    kind = architecture["type"]
    if not images:
        _refuse_augmentation(hyperparams)
        return
    if kind not in image_kinds():
        raise RequestError(
            f"architecture {kind} does not read images",
            hint=f"Give one of {', '.join(image_kinds())}, or leave the images out with exclude.",
        )
    single = images == 1 and not others
    if kind in ("cnn", *IMAGE_ARCHITECTURES) and not single:
        raise RequestError(
            f"architecture {kind} reads one image, and the features are {_counted(images, 'image')} and "
            f"{_counted(others, 'other column')}",
            hint="Give auto, or a network for tables with an image_encoder, such as "
            '{"type": "wide_and_deep", "image_encoder": "resnet"}.',
        )
    if architecture.get("input_shape") is not None:
        raise RequestError(
            f'architecture {kind}: "input_shape" means nothing for images, whose shape is their size',
            hint='Leave "input_shape" out, and give preprocess => \'{"size": [height, width]}\'.',
        )


def check_rows_are_images(architecture: Json, kinds: Sequence[str]) -> None:
    """Raise RequestError for a network of images if no feature is an image and rows cannot be read as images.

    `kinds` are those of the features. A single array may be an image: the worker knows its shape.
    """
    kind = architecture["type"]
    if kind not in ("cnn", *IMAGE_ARCHITECTURES) or "image" in kinds or list(kinds) == ["array"]:
        return
    if architecture.get("input_shape") is None:
        raise RequestError(
            f"architecture {kind} reads an image, and none of the {len(kinds)} features is one",
            hint="Give a network for tables, such as architecture => 'auto', or learn from one column of images or "
            "arrays: features => array['...']. If the features are the pixels of an image, give its channels, height "
            f'and width: {{"type": "{kind}", "input_shape": [1, 28, 28]}}.',
        )


def check_mixup(hyperparams: Json, task: str, images: int, others: int) -> None:
    """Raise RequestError for mixing rows that are not images with classes, or that have no other row in their batch.

    `images` and `others` count the features as in `check_images`.
    """
    alpha = hyperparams.get("mixup")
    if alpha is None:
        return
    subject = f'hyperparams: "mixup" is {shown(alpha)}'
    if task != "classification":
        raise RequestError(
            f"{subject}, and task {task} has no classes that could be mixed",
            hint="Leave it out: mixup is for classification of images.",
        )
    if not images or others:
        raise RequestError(
            f"{subject}, and the features are {_counted(images, 'image')} and {_counted(others, 'other column')}",
            detail="Mixup averages the pixels of two images. An average of categories means nothing.",
            hint="Leave it out, or learn from columns of bytea with images alone: features => array[...].",
        )
    if hyperparams.get("batch_size") == 1:
        raise RequestError(
            f"{subject}, and a batch has one row, which has no other row to be mixed with",
            hint='Leave it out, or set "batch_size" to 2 or more.',
        )


def check_sizes(architecture: Json, preprocess: Json, name: str) -> None:
    """Raise RequestError for patches that are larger than the requested size of the images of a column."""
    size = preprocess.get("size")
    size = size.get(name) if isinstance(size, dict) else size
    patch = architecture.get("patch", architecture.get("image_patch"))
    if size is not None and patch is not None and patch > min(size):
        raise RequestError(
            f"architecture {architecture['type']}: patches of {patch} pixels do not fit into images of "
            f"{size[0]} x {size[1]}",
            hint=f"Give patches of at most {min(size)} pixels, or a larger size.",
        )


def _refuse_augmentation(hyperparams: Json) -> None:
    option = next((name for name in AUGMENTATIONS if hyperparams.get(name)), None)
    if option is not None:
        raise RequestError(
            f'hyperparams: "{option}" changes images, and no feature is a column of images',
            hint="Leave it out. Columns of images have type bytea.",
        )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def bytes_of_hex(value: Any) -> bytes | None:
    """Return the bytes that bytea's output in hexadecimal stands for, or None for anything else."""
    if not isinstance(value, str) or not value.startswith("\\x"):
        return None
    try:
        return bytes.fromhex(value[2:])
    except ValueError:
        return None
