"""Checks a client's image against the limits, and finds its kind by its bytes. Pure. No URL is fetched."""

from __future__ import annotations

import hashlib
import re
from base64 import b64decode
from binascii import Error

from connections.images.headers import InvalidImage, header_of
from engine.vision.image import Detail, Image

MAX_IMAGES = 32
"""Images of one request."""
MAX_BYTES = 3 * 1024 * 1024
"""Bytes of one image: in base64 it fits a request's body."""
MAX_SIDE = 8192
MAX_POINTS = 32_000_000
"""Points of one image: a decoder needs some bytes for each, however small the file is."""
TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif")
_DATA_URL = re.compile(
    r"data:(?P<type>[a-z0-9.+/-]{0,64})(?:;[a-z0-9-]+=[^;,]{0,64}){0,4};base64,", re.IGNORECASE
)
_DETAILS: tuple[Detail, ...] = ("", "auto", "low", "high")


def image_from_url(url: str, detail: str = "") -> Image:
    """Return the image in a `data:` URL. Raises InvalidImage."""
    head = _DATA_URL.match(url)
    if head is None:
        if url[:5].lower() == "data:":
            raise InvalidImage("The image's `data:` URL must be in base64.")
        raise InvalidImage("This server fetches no images: send the image itself, in a `data:` URL.")
    return image_from_base64(url[head.end() :], head["type"], detail)


def image_from_base64(text: str, media_type: str = "", detail: str = "") -> Image:
    """Return the image in a text. `media_type`: the sender's; the bytes decide. Raises InvalidImage."""
    if media_type and media_type.lower() not in (*TYPES, "image/jpg", "application/octet-stream"):
        raise InvalidImage("This server takes images as PNG, JPEG, WebP or GIF.")
    if len(text) > MAX_BYTES * 4 // 3 + 4:
        raise _too_large()
    try:
        data = b64decode(text, validate=True)
    except (Error, ValueError):
        raise InvalidImage("The image is not in base64.") from None
    return image_from_bytes(data, detail)


def image_from_bytes(data: bytes, detail: str = "") -> Image:
    """Return an image. Raises InvalidImage."""
    if len(data) > MAX_BYTES:
        raise _too_large()
    known, header = detail_of(detail), header_of(data)
    if max(header.width, header.height) > MAX_SIDE or header.width * header.height > MAX_POINTS:
        raise InvalidImage(
            f"The image is too large: it has {header.width} by {header.height} points, and a side may have "
            f"{MAX_SIDE}, the whole {MAX_POINTS // 1_000_000} million."
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
    """Return how closely a model shall look. Raises InvalidImage."""
    if (known := next((one for one in _DETAILS if one == text), None)) is None:
        raise InvalidImage("The image's `detail` must be auto, low or high.")
    return known


def _too_large() -> InvalidImage:
    return InvalidImage(f"The image is too large: it may have {MAX_BYTES // 1024} KiB.")
