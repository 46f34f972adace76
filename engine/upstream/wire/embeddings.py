"""Reads the vectors of an answer. Those in the wanted form are checked and passed on unchanged. Pure, but yields to other tasks."""

from __future__ import annotations

import asyncio
import binascii
import struct
from base64 import b64decode, b64encode

import msgspec

from engine.embedding import Vectors
from engine.upstream.wire.chunks import Tokens

FLOAT_BYTES = 4


class InvalidVectors(ValueError):
    """An answer without vectors, or with others than were asked for."""


class _One(msgspec.Struct, frozen=True):
    index: int
    embedding: msgspec.Raw


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: Tokens = 0
    total_tokens: Tokens = 0


class _Answer(msgspec.Struct, frozen=True):
    data: list[_One]
    usage: _Usage | None = None


_answer = msgspec.json.Decoder(_Answer).decode
_text = msgspec.json.Decoder(str).decode
_numbers = msgspec.json.Decoder(list[float]).decode
_encode = msgspec.json.Encoder().encode


async def read_vectors(body: bytes, texts: int, *, packed: bool) -> Vectors:
    """Return the vectors for `texts` texts. Raises InvalidVectors.

    After each vector it yields to the event loop, since converting one takes time.
    """
    try:
        answer = _answer(body)
        found = sorted(answer.data, key=lambda one: one.index)
        if [one.index for one in found] != list(range(texts)):
            raise InvalidVectors(f"{len(found)} vectors for {texts} texts")
        vectors = []
        for one in found:
            vectors.append(encoded_as(one.embedding, packed=packed))
            await asyncio.sleep(0)
    except (
        msgspec.DecodeError,
        UnicodeError,
        RecursionError,
        binascii.Error,
        struct.error,
        OverflowError,
    ) as error:
        raise InvalidVectors(type(error).__name__) from error
    usage = answer.usage or _Usage()
    return Vectors(tuple(vectors), usage.prompt_tokens or usage.total_tokens)


def encoded_as(vector: msgspec.Raw, *, packed: bool) -> msgspec.Raw:
    """Return a vector in the wanted form. Raises InvalidVectors, and the errors of decoders if it is not one."""
    made: object
    match bytes(vector)[:1]:
        case b"[":
            numbers = _numbers(vector)
            made = None if not packed else b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()
        case b'"':
            raw = b64decode(_text(vector), validate=True)
            unpacked = struct.unpack(f"<{len(raw) // FLOAT_BYTES}f", raw)
            made = None if packed else unpacked
        case _:
            raise InvalidVectors("something that is no vector")
    return vector if made is None else msgspec.Raw(_encode(made))
