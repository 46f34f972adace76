"""What an image is, by its bytes alone: as Pillow finds it, and what is none of that is refused by a sentence."""

from __future__ import annotations

import re
import struct
import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connections.images import (
    MAX_BLOCKS,
    MAX_BYTES,
    MAX_CHUNKS,
    MAX_SCANS,
    MAX_SIDE,
    ImageHeader,
    InvalidImage,
    header_of,
    image_from_base64,
    image_from_bytes,
    image_from_url,
)
from tests.sample_images import JPEG, PNG, chunk, drawn, png

KINDS = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp", "GIF": "image/gif"}
SIDES = st.integers(1, 300)


@given(st.sampled_from(sorted(KINDS)), SIDES, SIDES)
def test_the_sizes_are_those_that_a_decoder_finds(kind: str, width: int, height: int) -> None:
    assert header_of(drawn(kind, width, height)) == ImageHeader(KINDS[kind], width, height)


@given(st.sampled_from(sorted(KINDS)), st.data())
def test_whatever_is_damaged_is_refused_or_has_sizes(kind: str, damage: st.DataObject) -> None:
    """0 unhandled: any cut, and any bytes in the place of others."""
    whole = drawn(kind, 40, 30)
    data = bytearray(whole[: damage.draw(st.integers(0, len(whole)))])
    for place in damage.draw(st.lists(st.integers(0, max(0, len(data) - 1)), max_size=4)):
        if data:
            data[place] = damage.draw(st.integers(0, 255))
    with suppress(InvalidImage):
        assert header_of(bytes(data)).media_type in KINDS.values()


@given(st.binary(max_size=200))
def test_bytes_that_are_nothing_are_refused(data: bytes) -> None:
    for begins in (b"", b"\xff\xd8\xff", b"GIF89a", b"\x89PNG\r\n\x1a\n", b"RIFF\0\0\0\0WEBP"):
        with suppress(InvalidImage):
            header_of(begins + data)


def test_a_lossless_web_picture_and_one_with_a_canvas_have_their_sizes() -> None:
    size = struct.pack("<I", 16)
    lossless = b"VP8L" + size + b"\x2f" + struct.pack("<I", 299 | 9 << 14) + bytes(11)
    canvas = b"VP8X" + size + bytes(4) + (299).to_bytes(3, "little") + (9).to_bytes(3, "little") + bytes(6)
    for inside in (lossless, canvas):
        data = b"RIFF" + struct.pack("<I", len(inside) + 4) + b"WEBP" + inside
        assert header_of(data) == ImageHeader("image/webp", 300, 10)


SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>'
BOMBS = {
    "a side": (png(MAX_SIDE + 1, 1, points=b""), "too large: it has 8193 by 1 pixels"),
    "points": (png(8000, 8000, points=zlib.compress(b"\0")), "32 million in total"),
    "no pixels": (png(0, 0, points=b""), "no pixels"),
    "a kind of colour": (png().replace(struct.pack(">BB", 8, 0), struct.pack(">BB", 8, 5), 1), "corrupt"),
    "chunks": (png(more=chunk(b"tEXt") * MAX_CHUNKS), "corrupt"),
    "a chunk beyond the end": (png()[:-4], "corrupt"),
    "a second header": (png(more=chunk(b"IHDR", bytes(13))), "corrupt"),
    "no end": (png()[:-12], "truncated"),
    "sizes twice": (
        JPEG.data[:2] + b"\xff\xc0\x00\x0b\x08\xff\xff\xff\xff\x01\x11\x00\x00" + JPEG.data[2:],
        "corrupt",
    ),
    "SVG": (SVG, "not a PNG, JPEG, WebP or GIF"),
    "bytes": (bytes(MAX_BYTES + 1), "too large: it may have"),
    "nothing": (b"", "not a PNG, JPEG, WebP or GIF"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_before_anything_is_decoded(name: str) -> None:
    data, why = BOMBS[name]
    with pytest.raises(InvalidImage, match=re.escape(why)):
        image_from_bytes(data)


def test_what_is_compressed_in_a_picture_is_not_looked_at() -> None:
    text = zlib.compress(bytes(20_000_000))
    assert header_of(png(more=chunk(b"zTXt", b"c\0\0" + text))) == ImageHeader("image/png", 3, 2)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("https://example.org/a.png", "are not fetched"),
        ("http://169.254.169.254/", "are not fetched"),
        ("file:///etc/passwd", "are not fetched"),
        ("data:image/png,abc", "must be in base64"),
        ("data:image/png;base64,????", "not valid base64"),
        ("data:image/svg+xml;base64,PHN2Zz4=", "PNG, JPEG, WebP and GIF"),
        ("data:text/html;base64,PGI+", "PNG, JPEG, WebP and GIF"),
        ("data:;base64," + "A" * 2 * MAX_BYTES, "too large"),
    ],
)
def test_no_url_is_fetched_and_what_is_in_one_is_checked(url: str, why: str) -> None:
    with pytest.raises(InvalidImage, match=re.escape(why)):
        image_from_url(url)


def test_what_counts_is_what_an_image_is_not_what_it_is_called() -> None:
    assert image_from_url(f"data:image/png;base64,{JPEG.base64}").media_type == "image/jpeg"
    assert image_from_url(f"DATA:image/jpg;charset=utf-8;base64,{JPEG.base64}") == JPEG.image
    assert image_from_base64(PNG.base64, detail="low").detail == "low"
    with pytest.raises(InvalidImage, match="`detail`"):
        image_from_base64(PNG.base64, detail="all of it")


def test_an_animation_of_a_million_tiny_parts_is_refused_soon() -> None:
    """Each part is looked at, on the event loop: so many, and no more."""
    whole = drawn("GIF", 4, 3)
    head = 13 + (3 << (whole[10] & 7) + 1 if whole[10] & 0x80 else 0)

    def with_parts(parts: int) -> bytes:
        return whole[:head] + b"!\xfe" + b"\x01x" * parts + b"\0" + whole[head:]

    assert header_of(with_parts(MAX_BLOCKS - 10)).width == 4
    with pytest.raises(InvalidImage, match="its chunks are invalid"):
        header_of(with_parts(MAX_BLOCKS + 1))
    empty = whole[:head] + b"!\xfe\0" * (MAX_BLOCKS + 1) + whole[head:]
    with pytest.raises(InvalidImage, match="its chunks are invalid"):
        header_of(empty)


def with_scans(scans: int, between: bytes = b"") -> bytes:
    whole = JPEG.data
    begin, end = whole.index(b"\xff\xda"), whole.rindex(b"\xff\xd9")
    return whole[:begin] + (between + whole[begin:end]) * scans + whole[end:]


def test_a_photo_of_a_thousand_scans_is_refused() -> None:
    """Each is a pass over all points; what looks like one, in a segment or behind the end, is none."""
    comment = b"\xff\xfe" + struct.pack(">H", 8) + b"\xff\xd9\xff\xda\xff\xda"
    most = with_scans(MAX_SCANS, comment) + b"\xff\xda" * 1000
    assert header_of(most) == header_of(JPEG.data)
    for between in (b"", comment, b"\xff\xd0", b"no marker\xff\xff\x00"):
        with pytest.raises(InvalidImage, match="too many chunks"):
            header_of(with_scans(MAX_SCANS + 1, between))
