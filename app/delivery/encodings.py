"""Encodes files for browsers: the bytes in an accepted content coding, with their entity tag."""

from __future__ import annotations

import gzip
import re
from enum import StrEnum
from hashlib import sha256
from pathlib import PurePath
from threading import Lock

import brotli


class Coding(StrEnum):
    """Content codings, the smallest result first."""

    BROTLI = "br"
    GZIP = "gzip"
    IDENTITY = "identity"


TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".md": "text/markdown; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".ts": "text/plain; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
"""Media types of the page's files, independent of the machine's own list."""
_WEIGHT = re.compile(r"0(\.\d{0,3})?|1(\.0{0,3})?")
_COMPRESSED = {".png", ".woff2"}
_SMALL = 256
"""Files of fewer bytes are not compressed: they fit one packet with their headers."""
_DIGITS = 16
"""Hexadecimal digits of the SHA-256 sum, in tags and in names."""


class Asset:
    """The bytes of a file. Each coding is made once, on first use: brotli takes a tenth of a second for 100 KB."""

    def __init__(self, name: str, content: bytes) -> None:
        suffix = PurePath(name).suffix
        self.media_type = TYPES.get(
            suffix, "text/plain; charset=utf-8" if not suffix else "application/octet-stream"
        )
        self.content = content
        self.digest = sha256(content).hexdigest()[:_DIGITS]
        self.varies = suffix not in _COMPRESSED and len(content) >= _SMALL
        self._coded: dict[Coding, bytes] = {Coding.IDENTITY: content}
        self._lock = Lock()

    def tag(self, coding: Coding) -> str:
        """Return the entity tag of the bytes in this coding."""
        return f'"{self.digest}"' if coding is Coding.IDENTITY else f'"{self.digest}-{coding}"'

    def ready(self, coding: Coding) -> bool:
        """Whether the bytes in this coding are there already."""
        return coding in self._coded

    def coded(self, coding: Coding) -> bytes:
        """The bytes in this coding."""
        with self._lock:
            if coding not in self._coded:
                self._coded[coding] = _compressed(self.content, coding)
            return self._coded[coding]


def chosen(accepted: str) -> Coding:
    """Return the coding that an `Accept-Encoding` header prefers; among equals the smallest (RFC 9110, 12.5.3)."""
    weights = dict(_weights(accepted))
    rest = weights.get("*", 0.0)
    liked = {coding: weights.get(coding, rest) for coding in (Coding.BROTLI, Coding.GZIP)}
    best = max(liked.values())
    plain = weights.get(Coding.IDENTITY, 0.0)
    if best <= 0.0 or plain > best:
        return Coding.IDENTITY
    return next(coding for coding, weight in liked.items() if weight == best)


def _weights(accepted: str) -> list[tuple[str, float]]:
    return [_weight(part) for part in accepted.lower().split(",") if part.strip()]


def _weight(part: str) -> tuple[str, float]:
    name, *parameters = (word.strip() for word in part.split(";"))
    for parameter in parameters:
        if parameter.startswith("q="):
            return name, float(parameter[2:]) if _WEIGHT.fullmatch(parameter[2:]) else 0.0
    return name, 1.0


def _compressed(content: bytes, coding: Coding) -> bytes:
    if coding is Coding.BROTLI:
        return bytes(brotli.compress(content, mode=brotli.MODE_TEXT))
    return gzip.compress(content, compresslevel=9, mtime=0)
