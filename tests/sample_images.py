"""Small images, made here: a PNG by hand, others by Pillow."""

from __future__ import annotations

import io
import struct
import zlib
from base64 import b64encode
from dataclasses import dataclass

from PIL import Image as Pillow

from connections.images import image_from_bytes
from engine.vision.image import Image


@dataclass(frozen=True, slots=True)
class Picture:
    """An image as clients send it, and as it is known here."""

    data: bytes

    @property
    def base64(self) -> str:
        return b64encode(self.data).decode()

    @property
    def image(self) -> Image:
        return image_from_bytes(self.data)

    @property
    def url(self) -> str:
        return self.image.url


def chunk(kind: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int = 3, height: int = 2, *, more: bytes = b"", points: bytes | None = None) -> bytes:
    """A grey one. `more`: chunks before its points."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    points = zlib.compress((b"\0" + b"\x80" * width) * height) if points is None else points
    begin = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + more
    return begin + chunk(b"IDAT", points) + chunk(b"IEND")


def drawn(kind: str, width: int, height: int) -> bytes:
    """One of another kind."""
    out = io.BytesIO()
    Pillow.new("RGB", (width, height), "navy").save(out, kind)
    return out.getvalue()


PNG = Picture(png())
JPEG = Picture(drawn("JPEG", 20, 10))
