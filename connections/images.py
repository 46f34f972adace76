"""Images from clients: their format and size, read from their bytes (PNG, JPEG, WebP, GIF), and limits. Pure. No URL is fetched.

Nothing is decoded or inflated: a few kilobytes can become gigabytes of pixels. Later decoders rely on the sizes found
here. So a size is read where a decoder reads it, and an image may have only one.
"""

from __future__ import annotations

import hashlib
import re
import struct
from base64 import b64decode
from binascii import Error
from collections.abc import Callable

import msgspec

from engine.vision.image import Detail, Image

MAX_CHUNKS = 10_000
"""The most chunks of a PNG, or segments of a JPEG: each is checked."""
MAX_SCANS = 64
"""The most scans of a JPEG. Each is a pass over all pixels; progressive JPEGs from cameras and programs have about ten."""
MAX_BLOCKS = 20_000
"""The most blocks in extensions before a GIF's first frame: as many full blocks as the largest allowed file can hold."""
_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_HEADER = 13
_PNG_BITS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
"""Bit depths by colour type."""
_JPEG = b"\xff\xd8"
_JPEG_MARK = 0xFF
_JPEG_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_ALONE = frozenset({0x01, *range(0xD0, 0xD8)})
_JPEG_SCAN, _JPEG_END = 0xDA, 0xD9
_JPEG_NEXT = re.compile(rb"\xff[^\x00\x01\xd0-\xd7\xff]")
"""The next marker with a segment after it, as a decoder finds one: bytes before the marker are skipped."""
_GIF = (b"GIF87a", b"GIF89a")
_GIF_HEADER = 13
_GIF_FRAME = 0x2C
_Kind = tuple[str, Callable[[bytes], bool], Callable[[bytes], tuple[int, int]]]
MAX_IMAGES = 32
"""The most images of one request."""
MAX_BYTES = 3 * 1024 * 1024
"""The most bytes of an image: in base64 it fits into a request's body."""
MAX_SIDE = 8192
MAX_PIXELS = 32_000_000
"""The most pixels of an image: a decoder needs some bytes for each, however small the file is."""
TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif")
_DATA_URL = re.compile(
    r"data:(?P<type>[a-z0-9.+/-]{0,64})(?:;[a-z0-9-]+=[^;,]{0,64}){0,4};base64,", re.IGNORECASE
)
_DETAILS: tuple[Detail, ...] = ("", "auto", "low", "high")


class InvalidImage(ValueError):
    """The bytes are not an image of a supported kind. The message is for the sender."""


class ImageHeader(msgspec.Struct, frozen=True):
    """The facts in an image's header. `width`, `height`: in pixels."""

    media_type: str
    width: int
    height: int


def header_of(data: bytes) -> ImageHeader:
    """Return an image's header. Raises InvalidImage."""
    for media_type, begins, sizes in _KINDS:
        if begins(data):
            try:
                width, height = sizes(data)
            except (struct.error, IndexError):
                raise InvalidImage("The image is truncated or corrupt.") from None
            if not (width and height):
                raise InvalidImage("The image has no pixels.")
            return ImageHeader(media_type, width, height)
    raise InvalidImage("The image is not a PNG, JPEG, WebP or GIF.")


def _png(data: bytes) -> tuple[int, int]:
    length, kind = struct.unpack_from(">I4s", data, len(_PNG))
    if (length, kind) != (_PNG_HEADER, b"IHDR"):
        raise InvalidImage("The image is corrupt: the PNG has no IHDR chunk at its start.")
    width, height, bits, colour, *methods, interlaced = struct.unpack_from(">IIBBBBB", data, len(_PNG) + 8)
    if bits not in _PNG_BITS.get(colour, ()) or any(methods) or interlaced > 1:
        raise InvalidImage("The image is corrupt: its header is invalid.")
    _check_chunks(data)
    return width, height


def _check_chunks(data: bytes) -> None:
    """Raise InvalidImage for chunks beyond the bytes, too many chunks, a second header, or a missing end or image."""
    place, kinds, has_pixels = len(_PNG), 0, False
    while place < len(data):
        length, kind = struct.unpack_from(">I4s", data, place)
        place += 12 + length
        kinds += 1
        if place > len(data) or kinds > MAX_CHUNKS or (kind == b"IHDR" and kinds > 1):
            raise InvalidImage("The image is corrupt: its chunks are invalid.")
        has_pixels |= kind == b"IDAT"
        if kind == b"IEND":
            break
    else:
        raise InvalidImage("The image is truncated or corrupt.")
    if not has_pixels:
        raise InvalidImage("The image has no pixels.")


def _jpeg(data: bytes) -> tuple[int, int]:
    place, sizes = len(_JPEG), []
    for _ in range(MAX_CHUNKS):
        if data[place] != _JPEG_MARK:
            break
        marker = data[place + 1]
        if marker == _JPEG_MARK:  # a fill byte
            place += 1
            continue
        if marker in _JPEG_ALONE:
            place += 2
            continue
        if marker in (_JPEG_SCAN, _JPEG_END):
            break
        if marker in _JPEG_SIZES:
            height, width = struct.unpack_from(">HH", data, place + 5)
            sizes.append((width, height))
        (length,) = struct.unpack_from(">H", data, place + 2)
        place += 2 + length
    if len(sizes) != 1:
        raise InvalidImage("The image is corrupt: its dimensions are missing.")
    _check_scans(data, place)
    return sizes[0]


def _check_scans(data: bytes, place: int) -> None:
    """Raise InvalidImage if a JPEG has too many scans: each has a few bytes, and together they take minutes to decode."""
    scans = 0
    for _ in range(MAX_CHUNKS):
        found = _JPEG_NEXT.search(data, place)
        if found is None or data[found.start() + 1] == _JPEG_END:
            return
        scans += data[found.start() + 1] == _JPEG_SCAN
        if scans > MAX_SCANS:
            break
        (length,) = struct.unpack_from(">H", data, found.end())
        place = found.end() + length
    raise InvalidImage("The image is corrupt: it has too many chunks.")


def _webp(data: bytes) -> tuple[int, int]:
    (length,) = struct.unpack_from("<I", data, 4)
    if length + 8 > len(data):
        raise InvalidImage("The image is truncated or corrupt.")
    match data[12:16]:
        case b"VP8 " if data[23:26] == b"\x9d\x01\x2a":
            width, height = struct.unpack_from("<HH", data, 26)
            return width & 0x3FFF, height & 0x3FFF
        case b"VP8L" if data[20] == 0x2F:  # noqa: PLR2004 - its signature
            (packed,) = struct.unpack_from("<I", data, 21)
            return (packed & 0x3FFF) + 1, (packed >> 14 & 0x3FFF) + 1
        case b"VP8X":
            return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    raise InvalidImage("The image is corrupt: its header is invalid.")


def _gif(data: bytes) -> tuple[int, int]:
    """Return the size of the canvas, extended to hold the first frame."""
    width, height, packed = struct.unpack_from("<HHB", data, 6)
    place = _GIF_HEADER + (3 << (packed & 7) + 1 if packed & 0x80 else 0)
    blocks = 0
    while data[place] == 0x21:  # noqa: PLR2004 - an extension
        place += 2
        while size := data[place]:
            place += 1 + size
            blocks += 1
            _check_blocks(blocks)
        place += 1
        blocks += 1
        _check_blocks(blocks)
    if data[place] != _GIF_FRAME:
        raise InvalidImage("The image has no pixels.")
    left, top, wide, high = struct.unpack_from("<HHHH", data, place + 1)
    return max(width, left + wide), max(height, top + high)


def _check_blocks(blocks: int) -> None:
    if blocks > MAX_BLOCKS:
        raise InvalidImage("The image is corrupt: its chunks are invalid.")


_KINDS: tuple[_Kind, ...] = (
    ("image/png", lambda data: data.startswith(_PNG), _png),
    ("image/jpeg", lambda data: data.startswith(_JPEG), _jpeg),
    ("image/webp", lambda data: data[:4] == b"RIFF" and data[8:12] == b"WEBP", _webp),
    ("image/gif", lambda data: data.startswith(_GIF), _gif),
)


def image_from_url(url: str, detail: str = "") -> Image:
    """Return the image in a `data:` URL. Raises InvalidImage."""
    head = _DATA_URL.match(url)
    if head is None:
        if url[:5].lower() == "data:":
            raise InvalidImage("The image's `data:` URL must be in base64.")
        raise InvalidImage("Image URLs are not fetched: send the image in a `data:` URL.")
    return image_from_base64(url[head.end() :], head["type"], detail)


def image_from_base64(text: str, media_type: str = "", detail: str = "") -> Image:
    """Return the image in a base64 text. `media_type`: as the sender states it; the bytes decide. Raises InvalidImage."""
    if media_type and media_type.lower() not in (*TYPES, "image/jpg", "application/octet-stream"):
        raise InvalidImage("Unsupported image format. Supported: PNG, JPEG, WebP and GIF.")
    if len(text) > MAX_BYTES * 4 // 3 + 4:
        raise _too_large()
    try:
        data = b64decode(text, validate=True)
    except (Error, ValueError):
        raise InvalidImage("The image is not valid base64.") from None
    return image_from_bytes(data, detail)


def image_from_bytes(data: bytes, detail: str = "") -> Image:
    """Return an image. Raises InvalidImage."""
    if len(data) > MAX_BYTES:
        raise _too_large()
    known, header = detail_of(detail), header_of(data)
    if max(header.width, header.height) > MAX_SIDE or header.width * header.height > MAX_PIXELS:
        raise InvalidImage(
            f"The image is too large: it has {header.width} by {header.height} pixels; at most "
            f"{MAX_SIDE} per side and {MAX_PIXELS // 1_000_000} million in total are allowed."
        )
    return Image(
        hashlib.sha256(data).hexdigest(),
        header.media_type,
        header.width,
        header.height,
        detail=known,
        data=data,
    )


def detail_of(text: str) -> Detail:
    """Return how closely a model should look. Raises InvalidImage."""
    if (known := next((one for one in _DETAILS if one == text), None)) is None:
        raise InvalidImage("The image's `detail` must be auto, low or high.")
    return known


def _too_large() -> InvalidImage:
    return InvalidImage(f"The image is too large: it may have at most {MAX_BYTES // 1024} KiB.")
