"""Images of every format become equal pixels whatever their mode; hostile bytes are refused with a reason."""

import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from indb_tensile.learning.encoding.image_decoding import ImageForm, ImageHeader, Unreadable, decode, read_header
from tests.learning import pictures
from tests.nightly import some_examples

FORM = ImageForm(height=6, width=8, channels=3, resize="crop")
GREY = ImageForm(height=6, width=8, channels=1, resize="crop")
WHITE = (255, 255, 255)


def corners(raw: bytes, form: ImageForm = FORM) -> list[tuple[int, ...]]:
    pixels = decode(raw, form)
    assert not isinstance(pixels, Unreadable), pixels
    return [tuple(map(int, pixels[:, y, x])) for y in (0, -1) for x in (0, -1)]


def reason(raw: bytes) -> str:
    refused = decode(raw, FORM)
    assert isinstance(refused, Unreadable)
    return refused.reason


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "GIF", "WEBP"])
def test_every_lossless_format_gives_the_pixels_that_were_stored(kind: str) -> None:
    options = {"lossless": True} if kind == "WEBP" else {}
    raw = pictures.encoded(pictures.stripes(), kind, **options)
    assert corners(raw) == [(250, 0, 0), (0, 250, 0), (0, 0, 250), (250, 250, 250)]
    assert read_header(raw) == ImageHeader(6, 8, grey=False)


def test_a_jpeg_is_decoded() -> None:
    assert np.allclose(
        corners(pictures.encoded(pictures.stripes(48, 64), "JPEG", quality=95)),
        corners(pictures.encoded(pictures.stripes(48, 64))),
        atol=12,
    )


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA", "CMYK", "YCbCr"])
def test_an_image_of_any_mode_becomes_grey_and_rgb(mode: str) -> None:
    white = Image.new("RGB", (8, 6), WHITE).convert(mode)
    raw = pictures.encoded(white, "TIFF" if mode in ("CMYK", "YCbCr") else "PNG")
    assert corners(raw) == [WHITE] * 4
    assert corners(raw, GREY) == [(255,)] * 4


def test_sixteen_bits_lose_their_lower_half() -> None:
    image = Image.fromarray(np.full((6, 8), 0x1234, np.uint16))
    assert [corners(pictures.encoded(image, kind), GREY) for kind in ("PNG", "TIFF")] == [[(0x12,)] * 4] * 2


def test_what_is_transparent_becomes_white() -> None:
    clear = Image.new("RGBA", (8, 6), (10, 20, 30, 0))
    half = Image.new("RGBA", (8, 6), (0, 0, 0, 128))
    palette = Image.new("P", (8, 6), 0)
    palette.putpalette([9, 9, 9])
    assert corners(pictures.encoded(clear)) == [WHITE] * 4
    assert corners(pictures.encoded(half)) == [(127, 127, 127)] * 4
    assert corners(pictures.encoded(palette, transparency=0)) == [WHITE] * 4


def test_a_large_palette_image_is_laid_on_white_by_bands() -> None:
    palette = Image.new("P", (2000, 2100), 1)
    palette.putpalette([9, 9, 9, 250, 0, 0])
    palette.paste(0, (0, 0, 2000, 2050))  # the second band begins at row 2,000
    form = ImageForm(height=2100, width=2000, channels=3, resize="stretch")
    pixels = decode(pictures.encoded(palette, transparency=0), form)
    assert not isinstance(pixels, Unreadable)
    expected = np.full((3, 2100, 2000), 255, np.uint8)
    expected[:, 2050:] = np.array([250, 0, 0], np.uint8)[:, None, None]
    assert np.array_equal(pixels, expected)


def test_the_first_frame_of_an_animation_counts() -> None:
    frames = [Image.new("RGB", (8, 6), colour) for colour in ((255, 0, 0), (0, 255, 0))]
    for kind in ("GIF", "PNG", "TIFF", "WEBP"):
        options = {"lossless": True} if kind == "WEBP" else {}
        raw = pictures.encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
        assert corners(raw) == [(255, 0, 0)] * 4


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_the_orientation_of_exif_is_applied(kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # shown after a quarter turn to the right
    sideways = pictures.stripes(48, 64).rotate(90, expand=True)
    raw = pictures.encoded(sideways, kind, exif=exif, **({"quality": 95} if kind in ("JPEG", "WEBP") else {}))
    assert read_header(raw) == ImageHeader(48, 64, grey=False)
    assert np.allclose(corners(raw), [(250, 0, 0), (0, 250, 0), (0, 0, 250), (250, 250, 250)], atol=14)


def test_an_exif_that_cannot_be_read_turns_nothing() -> None:
    rubbish = b"Exif\0\0II*\0\xff\xff\xff\xff"
    jpeg = pictures.encoded(pictures.stripes(48, 64), "JPEG")
    segment = b"\xff\xe1" + struct.pack(">H", len(rubbish) + 2) + rubbish
    assert decode(jpeg[:2] + segment + jpeg[2:], FORM).tobytes() == decode(jpeg, FORM).tobytes()  # type: ignore[union-attr]


def test_a_huge_exif_turns_nothing_and_costs_nothing() -> None:
    jpeg = pictures.encoded(pictures.stripes(48, 64), "JPEG")
    segment = b"\xff\xe1" + struct.pack(">H", 65535) + b"Exif\0\0" + b"\xff" * 65527
    assert decode(jpeg[:2] + 20 * segment + jpeg[2:], FORM).tobytes() == decode(jpeg, FORM).tobytes()  # type: ignore[union-attr]


def test_an_image_is_cropped_padded_or_stretched_to_its_size() -> None:
    wide = pictures.encoded(pictures.stripes(6, 32))
    black = (0, 0, 0)
    by_rule = {
        rule: corners(wide, ImageForm(height=8, width=8, channels=3, resize=rule))
        for rule in ("crop", "pad", "stretch")
    }
    shown = [(250, 0, 0), (0, 250, 0), (0, 0, 250), (250, 250, 250)]
    assert by_rule == {"crop": shown, "pad": [black] * 4, "stretch": shown}


def test_a_bomb_is_refused_by_its_header() -> None:
    assert reason(pictures.png_of_size(65535, 65535)).startswith("is an image of 65535 x 65535 pixels, more than")
    webp = b"RIFF\x00\x00\x00\x00WEBPVP8X\x0a\x00\x00\x00" + bytes(4) + b"\xff\x3f\x00\xff\x3f\x00"
    assert reason(webp).startswith("is an image of 16384 x 16384 pixels")
    gif = b"GIF89a" + struct.pack("<HH", 65535, 65535) + bytes(3) + b";"
    assert "65535 x 65535" in reason(gif) or reason(gif).startswith("is a broken GIF")
    bitmap = b"BM" + bytes(12) + struct.pack("<IiiHHIIiiII", 40, 60000, 60000, 1, 24, 0, 0, 0, 0, 0, 0)
    assert reason(bitmap).startswith("is an image of 60000 x 60000 pixels")


def test_a_gif_whose_frame_is_larger_than_its_canvas_is_refused() -> None:
    frame = b"," + struct.pack("<4H", 0, 0, 65535, 65535) + b"\0\x02\x02\x4c\x01\0;"
    raw = b"GIF89a" + struct.pack("<HH", 10, 10) + b"\x80" + bytes(8) + frame
    assert reason(raw).startswith("is a broken GIF image (Image size (4294836225 pixels) exceeds limit")


def test_a_tiff_with_huge_tiles_is_refused() -> None:
    tags = [(256, 4, 1), (257, 4, 1), (258, 3, 8), (259, 3, 1), (262, 3, 1), (277, 3, 1), (322, 4, 60000)]
    tags += [(323, 4, 60000), (324, 4, 8), (325, 4, 16)]
    body = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
    raw = b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", len(tags)) + body + bytes(4)
    assert reason(raw) == "is an image with tiles of 60000 x 60000 pixels, more than 50000000 in all"


def test_a_line_of_65535_pixels_is_an_image() -> None:
    raw = pictures.encoded(Image.new("L", (65535, 1), 77))
    assert corners(raw, ImageForm(height=2, width=2, channels=1, resize="stretch")) == [(77,)] * 4


def test_a_compressed_text_that_grows_is_refused() -> None:
    raw = pictures.encoded(pictures.stripes())
    text = b"k\0\0" + zlib.compress(bytes(80 << 20))
    chunk = struct.pack(">I", len(text)) + b"zTXt" + text + struct.pack(">I", zlib.crc32(b"zTXt" + text))
    grown = raw[:33] + chunk + raw[33:]
    refused = decode(grown, FORM)
    assert isinstance(refused, Unreadable) or refused.tobytes() == decode(raw, FORM).tobytes()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "is empty"),
        (b"%PDF-1.7 and more", "starts with 25 50 44 46, which is no image of PNG, JPEG, WebP, BMP, GIF, TIFF"),
        (b"\x8aMNG\r\n\x1a\n" + bytes(40), "starts with 8a 4d 4e 47"),
        (b"\x00\x00\x01\x00\x01\x00" + bytes(40), "starts with 00 00 01 00"),
        (b"P6 1 1 255 abc", "starts with 50 36 20 31"),
        (b"%!PS-Adobe-3.0 EPSF", "starts with 25 21 50 53"),
        (b"\x89PNG\r\n\x1a\n%PDF" + bytes(40), "is a broken PNG image"),
        (b"\xff\xd8\xff\xe0" + bytes(40), "is a broken JPEG image"),
        (b"GIF89a", "is a broken GIF image"),
        (b"BM" + bytes(80), "is a broken BMP image"),
        (b"II*\0\xff\xff\xff\xff", "is a broken TIFF image"),
        (b"RIFF\x10\0\0\0WEBPrubbish.........", "is a broken WebP image"),
        (pictures.png_of_size(0, 7), "is a"),
    ],
)
def test_bytes_that_are_no_image_are_refused_with_a_reason(raw: bytes, words: str) -> None:
    assert reason(raw).startswith(words)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF"])
def test_a_truncated_image_is_refused(kind: str) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 40, 3), np.uint8))
    raw = pictures.encoded(noise, kind)
    assert "broken" in reason(raw[: len(raw) // 2])


@some_examples()
@given(st.sampled_from(["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF"]), st.data())
def test_no_change_of_bytes_raises_an_exception(kind: str, data: st.DataObject) -> None:
    raw = bytearray(pictures.encoded(pictures.stripes(16, 16), kind))
    for _ in range(data.draw(st.integers(1, 6))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    pixels = decode(bytes(raw), FORM)
    assert isinstance(pixels, Unreadable) or (pixels.shape, pixels.dtype.name) == ((3, 6, 8), "uint8")


def test_no_other_decoder_is_imported() -> None:
    program = (
        "import sys; from indb_tensile.learning.encoding.image_decoding import ImageForm, decode;"
        "assert not [m for m in sys.modules if m.startswith('PIL')];"
        "form = ImageForm(height=2, width=2, channels=1, resize='pad');"
        "[decode(bytes.fromhex(head) + bytes(60), form) for head in"
        " ('89504e470d0a1a0a', 'ffd8ffe0', '424d', '474946383961', '49492a00', '52494646000000005745425056503858')];"
        "print(sorted(m for m in sys.modules if m.endswith('ImagePlugin')))"
    )
    listed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    names = ("Bmp", "Gif", "Jpeg", "Png", "Tiff", "WebP")
    assert listed.strip() == str([f"PIL.{name}ImagePlugin" for name in names])
