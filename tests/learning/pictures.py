"""Small encoded images for tests, and hostile bytes that look like images."""

import io
import struct
import zlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from PIL import Image

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """Return the bytes of an image."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def square(place: int, side: int = 12, level: int = 250) -> Image.Image:
    """Return a dark image with a bright square in one of its four corners."""
    pixels = np.full((side, side), 20, np.uint8)
    half = side // 2
    top, left = divmod(place % 4, 2)
    pixels[top * half : top * half + half, left * half : left * half + half] = level
    return Image.fromarray(pixels)


def stripes(height: int = 6, width: int = 8) -> Image.Image:
    """Return an image whose four corners have different colours."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[: height // 2, : width // 2] = (250, 0, 0)
    pixels[: height // 2, width // 2 :] = (0, 250, 0)
    pixels[height // 2 :, : width // 2] = (0, 0, 250)
    pixels[height // 2 :, width // 2 :] = (250, 250, 250)
    return Image.fromarray(pixels)


def as_hex(raw: bytes) -> str:
    """Return bytes as JSON has a bytea."""
    return "\\x" + raw.hex()


def png_of_size(width: int, height: int) -> bytes:
    """Return a PNG whose header promises this size, with almost no pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(b"\0")) + _chunk(b"IEND", b"")
    )


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
