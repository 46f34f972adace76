"""`/v1/embeddings` by OpenAI's own client: texts as vectors, made by a server that the operator names."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from starlette.responses import JSONResponse

from app.keys import add_key
from app.models import tables_of
from app.settings import SettingsError
from connections.authentication.api_keys import parse_policy
from engine.api import Texts
from engine.errors import EngineBusy, EngineUnavailable, PromptRejected
from engine.upstream.engine import UpstreamEmbedder
from engine.upstream.options import EmbedderOptions, Timeouts
from tests.app.in_process_service import InProcessService, serving, settings_with
from tests.app.openai_client import client_of
from tests.engine.upstream_server import UpstreamServer, upstream_server

FILE = """
[[upstream]]
name = "chat"
url = "http://127.0.0.1:9/v1"
model = "m"
context_tokens = 4096

[[embedder]]
name = "one"
url = "{url}"
model = "model"
served_name = "bge"
max_inputs = 3

[[embedder]]
name = "two"
url = "{url}"
model = "other"
dimensions = true
"""


@pytest.fixture
async def server() -> AsyncIterator[UpstreamServer]:
    async with upstream_server() as upstream:
        yield upstream


@pytest.fixture
async def running(tmp_path: Path, server: UpstreamServer) -> AsyncIterator[InProcessService]:
    async with embedding(tmp_path, server) as service:
        yield service


@asynccontextmanager
async def embedding(
    folder: Path, server: UpstreamServer, tables: str = "", **settings: Any
) -> AsyncIterator[InProcessService]:
    """A service over the scripted engine and a server for embeddings."""
    file = folder / "upstreams.toml"
    file.write_text(f"{FILE.format(url=server.url)}\n{tables}")
    async with serving(folder, config=str(file), **settings) as service:
        yield service


@asynccontextmanager
async def embedder(server: UpstreamServer, **options: Any) -> AsyncIterator[UpstreamEmbedder]:
    named = EmbedderOptions(**{"name": "one", "url": server.url, "model": "model", "retries": 1} | options)
    async with UpstreamEmbedder(named).running() as one:
        yield one


async def test_texts_become_vectors_in_their_order(sdk: AsyncOpenAI, server: UpstreamServer) -> None:
    """OpenAI's client asks for base64, but the server for numbers, which come in an order of its own."""
    reported = await sdk.embeddings.create(model="bge", input=["a", "four"])
    assert [one.embedding for one in reported.data] == [[1.0, 0.5, -0.25], [4.0, 0.5, -0.25]]
    assert [one.index for one in reported.data] == [0, 1]
    assert (reported.model, reported.usage.prompt_tokens, reported.usage.total_tokens) == ("bge", 7, 7)
    assert server.bodies[-1] == {"model": "model", "input": ["a", "four"], "encoding_format": "float"}


async def test_numbers_and_one_text_and_a_length(sdk: AsyncOpenAI, server: UpstreamServer) -> None:
    reported = await sdk.embeddings.create(model="other", input="two", encoding_format="float", dimensions=3)
    assert reported.data[0].embedding == [3.0, 0.5, -0.25]
    assert (server.bodies[-1]["dimensions"], server.bodies[-1]["input"]) == (3, ["two"])


async def test_a_client_that_leaves_has_its_request_given_up(
    sdk: AsyncOpenAI, server: UpstreamServer
) -> None:
    server.holds_vectors = True
    request = asyncio.ensure_future(sdk.embeddings.create(model="bge", input="a"))
    async with asyncio.timeout(10):
        await server.held.wait()
        request.cancel()
        await server.closed.wait()


async def test_a_key_asks_the_models_that_it_names(tmp_path: Path, server: UpstreamServer) -> None:
    keys = tmp_path / "keys"
    key = add_key(keys, "ann", policy=parse_policy(["models=bge"]))
    async with embedding(tmp_path, server, api_keys=str(keys)) as service, client_of(service, key) as sdk:
        assert (await sdk.embeddings.create(model="bge", input="a")).data
        with pytest.raises(openai.PermissionDeniedError, match='may not use the model "other"'):
            await sdk.embeddings.create(model="other", input="a")


async def test_what_was_read_counts_as_tokens(tmp_path: Path, server: UpstreamServer) -> None:
    async with embedding(tmp_path, server, tokens_per_day=10) as service, client_of(service) as sdk:
        await sdk.embeddings.create(model="bge", input="a")
        await sdk.embeddings.create(model="bge", input="a")
        create = sdk.embeddings.create
        with pytest.raises(openai.RateLimitError):
            await until_refused(lambda: create(model="bge", input="a"))


async def until_refused(ask: Callable[[], Awaitable[object]]) -> None:
    """Ask again and again: counts are written a moment later."""
    async with asyncio.timeout(10):
        while True:
            await ask()


async def test_a_filter_reads_what_is_embedded(tmp_path: Path, server: UpstreamServer) -> None:
    filters = '[filters.input]\nwords = ["secret"]'
    async with embedding(tmp_path, server, filters) as service, client_of(service) as sdk:
        with pytest.raises(openai.BadRequestError, match="A filter of this server refuses"):
            await sdk.embeddings.create(model="bge", input=["a", "a secret"])
    assert server.bodies == []


async def test_what_was_lost_is_asked_again_and_what_was_refused_is_not(server: UpstreamServer) -> None:
    refused = JSONResponse({"error": {"message": "too wild"}}, 400)
    server.vectors = [JSONResponse({}, 500), refused]
    async with embedder(server) as one:
        with pytest.raises(PromptRejected, match=r"refuses the request \(400\)"):
            await one.embed(Texts(("a",)))
        assert len(server.bodies) == 2
        server.vectors = [JSONResponse({}, 500), JSONResponse({}, 500)]
        with pytest.raises(EngineUnavailable, match="failed"):
            await one.embed(Texts(("a",)))
        server.vectors = [JSONResponse({}, 429)]
        with pytest.raises(EngineBusy):
            await one.embed(Texts(("a",)))


async def test_who_makes_no_vectors_in_time_or_too_many_is_told_so(
    server: UpstreamServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.upstream.engine.MOST_BYTES", 64)
    async with embedder(server) as one:
        with pytest.raises(PromptRejected, match="send fewer texts"):
            await one.embed(Texts(("a",)))
    server.holds_vectors = True
    async with embedder(server, timeouts=Timeouts(first_token_s=0.05)) as one:
        with pytest.raises(EngineUnavailable, match="made no vectors in time"):
            await one.embed(Texts(("a",)))


async def test_no_more_are_asked_at_once_than_the_server_takes(server: UpstreamServer) -> None:
    server.holds_vectors = True
    async with embedder(server, max_requests=1) as one:
        first = asyncio.ensure_future(one.embed(Texts(("a",), "ann")))
        async with asyncio.timeout(10):
            await server.held.wait()
            second = asyncio.ensure_future(one.embed(Texts(("b",), "bob")))
            await asyncio.sleep(0)
            assert one._limiter.waiting == 1
            assert len(server.bodies) == 1
            server.holds_vectors = False
            first.cancel()
            assert json.loads(bytes((await second).vectors[0])) == [1, 0.5, -0.25]


@pytest.mark.parametrize("name", ["m", "other"])
def test_two_models_of_one_name_are_refused_at_the_start(tmp_path: Path, name: str) -> None:
    file = tmp_path / "upstreams.toml"
    file.write_text(FILE.format(url="http://h/v1").replace('"bge"', f'"{name}"'))
    with pytest.raises(SettingsError, match="has the name of another one"):
        tables_of(settings_with(config=str(file)))
