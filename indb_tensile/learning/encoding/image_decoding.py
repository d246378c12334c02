"""Decodes the bytes of an image to pixels of one size, with Pillow.

Only the decoders of the formats in request/image_rules.py are imported, each for the first image of its format:
`PIL.Image.open` is not used, because it imports every plugin of the library for bytes that it does not know. The
number of pixels is checked in the header, before anything is decoded. Equal bytes give equal pixels: of an animation
or of several pages the first one counts, 16 bits lose their lower half, and what is transparent becomes white.
"""

import io
import struct
import threading
import warnings
import zlib
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from indb_tensile.request.image_rules import FORMATS, HEAD_BYTES, MOST_IMAGE_BYTES, MOST_PIXELS, format_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from PIL.Image import Image

Pixels = npt.NDArray[np.uint8]  # (channels, height, width)

_ORIENTATION = 0x0112  # the tag of EXIF
_TILE_WIDTH, _TILE_LENGTH = 322, 323  # tags of TIFF
_TURNED = range(5, 9)  # orientations that exchange height and width
_GREY_MODES = ("1", "L", "LA", "La", "I;16", "I;16B", "I;16L", "I")
# What Pillow's decoders raise for bytes that are no image of their format.
_FAULTS = (
    *(OSError, ValueError, SyntaxError, EOFError, KeyError, IndexError, TypeError, AttributeError, OverflowError),
    *(ZeroDivisionError, NotImplementedError, RuntimeError, AssertionError, struct.error, zlib.error, MemoryError),
)
_LARGE_PIXELS = 4_000_000  # larger images are decoded one at a time, so that memory holds one of them
_DRAFT = 2  # a photograph is decoded at no less than this multiple of its final size
_large = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageForm:
    """The form that images are brought to: 1 channel for grey or 3 for colours; `resize` is how the size is met."""

    height: int
    width: int
    channels: int
    resize: str

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return the shape of the pixels: channels, height and width."""
        return self.channels, self.height, self.width


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Why bytes are no image that can be read, as the end of a sentence about the value."""

    reason: str


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """Height and width of an image as it is shown, and whether it has no colours."""

    height: int
    width: int
    grey: bool


def read_header(raw: bytes) -> ImageHeader | Unreadable:
    """Return what the header says, without decoding pixels."""
    opened = _opened(raw)
    if isinstance(opened, Unreadable):
        return opened
    with opened as image:
        width, height = image.size
        if _orientation(image) in _TURNED:
            height, width = width, height
        return ImageHeader(height, width, image.mode in _GREY_MODES)


def decode(raw: bytes, form: ImageForm) -> Pixels | Unreadable:
    """Return the pixels of the image in this form, or why there are none."""
    opened = _opened(raw)
    if isinstance(opened, Unreadable):
        return opened
    with opened as image, _large if image.width * image.height > _LARGE_PIXELS else nullcontext():
        try:
            longest = _DRAFT * max(form.height, form.width)
            if image.format == "JPEG":
                image.draft(None, (longest, longest))
            image.load()
            return _in_form(image, _orientation(image), form)
        except _faults() as error:
            return Unreadable(f"is a broken {_name_of(raw)} image ({_sentence(error)})")


def _opened(raw: bytes) -> "Image | Unreadable":
    """Return the image with its header read, or why it is not decoded."""
    if len(raw) > MOST_IMAGE_BYTES:
        return Unreadable(f"has {len(raw)} bytes, more than the {MOST_IMAGE_BYTES} that an image may have")
    if not raw:
        return Unreadable("is empty")
    name = format_of(raw[:HEAD_BYTES])
    if name is None:
        return Unreadable(f"starts with {raw[:4].hex(' ')}, which is no image of {', '.join(FORMATS)}")
    canvas = _webp_canvas(raw) if name == "WebP" else None  # whose decoder takes memory for it at once
    if canvas is not None and (fault := _size_fault(*canvas)):
        return fault
    try:
        image = _decoder(name)(io.BytesIO(raw))
    except _faults() as error:
        return Unreadable(f"is a broken {name} image ({_sentence(error)})")
    if fault := _size_fault(*image.size) or _tile_fault(image):
        image.close()
        return fault
    return image


def _faults() -> tuple[type[BaseException], ...]:
    """Return what decoders raise. Pillow's error for sizes that it refuses itself is none of Python's."""
    from PIL.Image import DecompressionBombError

    return *_FAULTS, DecompressionBombError


def _size_fault(width: int, height: int) -> Unreadable | None:
    if width < 1 or height < 1:
        return Unreadable(f"is an image of {width} x {height} pixels")
    if width * height > MOST_PIXELS:
        pixels = f"{width} x {height} pixels, more than the {MOST_PIXELS} in all that are decoded"
        return Unreadable(f"is an image of {pixels}")
    return None


def _tile_fault(image: "Image") -> Unreadable | None:
    """Return why the tiles of a TIFF are not decoded: their decoder takes memory for one, however small the image."""
    tags = getattr(image, "tag_v2", {})
    width, height = tags.get(_TILE_WIDTH, 0), tags.get(_TILE_LENGTH, 0)
    if not isinstance(width, int) or not isinstance(height, int) or width * height > MOST_PIXELS:
        return Unreadable(f"is an image with tiles of {width} x {height} pixels, more than {MOST_PIXELS} in all")
    return None


def _decoder(name: str) -> "Callable[[io.BytesIO], Image]":
    """Return the class of Pillow that decodes this format. The import takes some milliseconds."""
    # Its warnings are about metadata, such as corrupt EXIF, or about sizes that are refused here.
    warnings.filterwarnings("ignore", module=r"PIL\b")
    match name:
        case "PNG":
            from PIL.PngImagePlugin import PngImageFile as Decoder
        case "JPEG":
            from PIL.JpegImagePlugin import JpegImageFile as Decoder  # type: ignore[assignment]
        case "WebP":
            from PIL.WebPImagePlugin import WebPImageFile as Decoder  # type: ignore[assignment]
        case "BMP":
            from PIL.BmpImagePlugin import BmpImageFile as Decoder  # type: ignore[assignment]
        case "GIF":
            from PIL.GifImagePlugin import GifImageFile as Decoder  # type: ignore[assignment]
        case _:
            from PIL.TiffImagePlugin import TiffImageFile as Decoder  # type: ignore[assignment]
    return Decoder


def _webp_canvas(raw: bytes) -> tuple[int, int] | None:
    """Return width and height of a WebP image from its first chunk (RFC 9649), or None if that is incomplete."""
    kind, body = raw[12:16], raw[20:30]
    if len(body) < 10:
        return None
    if kind == b"VP8X":
        return 1 + int.from_bytes(body[4:7], "little"), 1 + int.from_bytes(body[7:10], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(body[1:5], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    width, height = struct.unpack("<HH", body[6:10])
    return width & 0x3FFF, height & 0x3FFF


def _orientation(image: "Image") -> int:
    """Return the orientation of EXIF, from 1 to 8; 1 if the image has none that can be read.

    A TIFF has the size that is shown, and its decoder turns the pixels.
    """
    if image.format == "TIFF":
        return 1
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except _faults():
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _in_form(image: "Image", orientation: int, form: ImageForm) -> Pixels | Unreadable:
    """Convert, turn and resize a decoded image."""
    plain = _plain(image, form.channels)
    if isinstance(plain, Unreadable):
        return plain
    resized = _resized(_upright(plain, orientation), form)
    pixels = np.asarray(resized, np.uint8)
    return pixels[None] if form.channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _plain(image: "Image", channels: int) -> "Image | Unreadable":
    """Return the image in grey or in red, green and blue, of eight bits each."""
    from PIL import Image as Images

    mode = "L" if channels == 1 else "RGB"
    if image.mode == "F":
        return Unreadable("is an image of floating-point pixels, whose range is not known")
    if image.mode.startswith("I"):
        high = np.asarray(image).clip(0, 0xFFFF) >> 8  # without a wider copy: it may have 50 million pixels
        return Images.fromarray(high.astype(np.uint8)).convert(mode)
    if image.mode in ("LA", "La", "RGBA", "RGBa", "PA") or "transparency" in image.info:
        return _over_white(image, mode)
    if mode == "L" and image.mode not in ("L", "1"):
        return image.convert("RGB").convert("L")
    return image.convert(mode)


def _over_white(image: "Image", mode: str) -> "Image":
    """Return the image in this mode on white, where it is transparent.

    A band of rows is converted at a time: for a whole image of 50 million pixels three copies of 200 MB would exist
    at once.
    """
    from PIL import Image as Images

    whole = Images.new(mode, image.size)
    rows = max(1, _LARGE_PIXELS // image.width)
    for top in range(0, image.height, rows):
        band = image.crop((0, top, image.width, min(top + rows, image.height))).convert("RGBA")
        white = Images.new("RGBA", band.size, (255, 255, 255, 255))
        whole.paste(Images.alpha_composite(white, band).convert("RGB").convert(mode), (0, top))
    return whole


def _upright(image: "Image", orientation: int) -> "Image":
    """Return the image as its orientation says that it is shown."""
    from PIL.Image import Transpose

    turns = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    return image.transpose(turns[orientation]) if orientation in turns else image


def _resized(image: "Image", form: ImageForm) -> "Image":
    """Return the image in the size: its middle, the whole with black borders, or the whole stretched."""
    from PIL import Image as Images

    width, height = image.size
    if (width, height) == (form.width, form.height):
        return image
    bilinear = Images.Resampling.BILINEAR
    if form.resize == "stretch":
        return image.resize((form.width, form.height), bilinear)
    if form.resize == "crop":
        scale = min(width / form.width, height / form.height)
        own_width, own_height = scale * form.width, scale * form.height
        left, top = (width - own_width) / 2, (height - own_height) / 2
        box = (left, top, min(width, left + own_width), min(height, top + own_height))
        return image.resize((form.width, form.height), bilinear, box=box)
    scale = min(form.width / width, form.height / height)
    inner = image.resize((max(1, round(width * scale)), max(1, round(height * scale))), bilinear)
    whole = Images.new(image.mode, (form.width, form.height))
    whole.paste(inner, ((form.width - inner.width) // 2, (form.height - inner.height) // 2))
    return whole


def _name_of(raw: bytes) -> str:
    return format_of(raw[:HEAD_BYTES]) or "foreign"


def _sentence(error: BaseException) -> str:
    """Return the first words of a decoder's message."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LONGEST_REASON else text[:_LONGEST_REASON] + "..."


_LONGEST_REASON = 100
