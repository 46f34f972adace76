"""An OpenAI-compatible server of embeddings. Each request has a connection, which is closed if nobody waits any more."""

from __future__ import annotations

import asyncio
import binascii
import random
import struct
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Annotated

import httpx
import msgspec
from msgspec import Meta

from engine.api import Texts, Vectors
from engine.errors import EngineLost, EngineUnavailable, PromptRejected
from engine.upstream.http_client import (
    ConcurrencyLimiter,
    RequestRefused,
    engine_errors,
    http_client,
    refusal_of,
)
from engine.upstream.monitor import backoff
from engine.upstream.options import Count, Timeouts
from engine.upstream.reply import Tokens

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


MOST_BYTES = 16 * 1024 * 1024
"""Most bytes of an answer. 256 vectors of 2,048 numbers have fewer; a larger request is told to send fewer texts."""


class EmbedderOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An embedding model and its server.

    `url`, `model`, `served_name`, `key_variable`, `ca_file`, `max_requests` and `retries`: as of `UpstreamOptions`.
    `dimensions`: whether a request can choose the length of vectors. `max_inputs`: most texts of one request.
    """

    name: Annotated[str, Meta(min_length=1)]
    url: Annotated[str, Meta(pattern=r"^https?://[^/?#@]+(/[^?#]*)?$")]
    model: Annotated[str, Meta(min_length=1)]
    served_name: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    key_variable: Annotated[str, Meta(pattern=r"^[A-Za-z_]\w*$")] | None = None
    ca_file: str | None = None
    dimensions: bool = False
    max_inputs: Annotated[int, Meta(ge=1, le=2048)] = 128
    max_requests: Count = 16
    retries: Annotated[int, Meta(ge=0, le=10)] = 2
    timeouts: Timeouts = Timeouts()

    @property
    def public_name(self) -> str:
        """The model's name for clients."""
        return self.served_name or self.model


class _Waiting(msgspec.Struct, eq=False):
    """A request in the queue."""

    client: str
    arrival: int
    priority: int = 0


class UpstreamEmbedder:
    """An `Embedder`. A lost request is retried `retries` times, since it has no side effects; one that takes too long is not."""

    def __init__(self, options: EmbedderOptions, *, key: str | None = None) -> None:
        self._options = options
        self._client = http_client(options, key)
        self._arrivals = count()
        self._limiter: ConcurrencyLimiter[_Waiting] = ConcurrencyLimiter(
            options.max_requests, lambda *_: None
        )

    @property
    def name(self) -> str:
        """The model's name for clients."""
        return self._options.public_name

    @property
    def max_texts(self) -> int:
        """The most texts of one request."""
        return self._options.max_inputs

    @property
    def takes_dimensions(self) -> bool:
        """Whether a request can choose the length of vectors."""
        return self._options.dimensions

    @asynccontextmanager
    async def running(self) -> AsyncIterator[UpstreamEmbedder]:
        """Serve inside the block; at its end no connection is open."""
        async with self._client:
            yield self

    async def embed(self, texts: Texts) -> Vectors:
        """Embed each text. Raises PromptRejected, EngineBusy, EngineUnavailable."""
        waiting = _Waiting(texts.client, next(self._arrivals))
        await self._limiter.enter(waiting)
        try:
            return await self._request_with_retry(texts)
        except RequestRefused as refusal:
            raise PromptRejected(str(refusal), field="input") from refusal
        finally:
            self._limiter.leave(waiting)

    async def _request_with_retry(self, texts: Texts) -> Vectors:
        pauses = backoff(self._options.retries, random.random)
        while True:
            try:
                return await self._request(texts)
            except EngineLost as error:
                if (pause_s := next(pauses, None)) is None:
                    raise EngineUnavailable(str(error)) from error
                await asyncio.sleep(pause_s)

    async def _request(self, texts: Texts) -> Vectors:
        """Raises EngineLost, EngineUnavailable, RequestRefused."""
        options = self._options
        try:
            async with asyncio.timeout(options.timeouts.first_token_s):
                with engine_errors(options.name):
                    body = await self._answer(texts)
        except TimeoutError:
            raise EngineUnavailable(f"The engine {options.name} made no vectors in time.") from None
        try:
            return await read_vectors(body, len(texts.texts), packed=texts.packed)
        except InvalidVectors as error:
            raise EngineUnavailable(
                f"The engine {options.name} answers with no embeddings: {error}."
            ) from error

    async def _answer(self, texts: Texts) -> bytes:
        payload: dict[str, object] = {"model": self._options.model, "input": texts.texts}
        payload["encoding_format"] = "base64" if texts.packed else "float"
        if texts.dimensions is not None:
            payload["dimensions"] = texts.dimensions
        headers = {"Content-Type": "application/json"}
        sent = self._client.stream(
            "POST", "embeddings", content=msgspec.json.encode(payload), headers=headers
        )
        async with sent as response:
            if response.status_code != httpx.codes.OK:
                raise await refusal_of(self._options.name, response)
            return await self._body(response)

    async def _body(self, response: httpx.Response) -> bytes:
        body = bytearray()
        async for part in response.aiter_bytes():
            body += part
            if len(body) > MOST_BYTES:
                raise PromptRejected(
                    "The vectors are too many to be sent at once: send fewer texts.", field="input"
                )
        return bytes(body)
