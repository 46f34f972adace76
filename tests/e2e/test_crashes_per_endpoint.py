"""The service is killed during replies of every endpoint that stores them: each one ends once, with the sent text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from tests.app import endpoints
from tests.app.endpoints import ENDPOINTS, Endpoint, Reply, open_reply
from tests.app.in_process_service import Frame
from tests.chaos import gateway
from tests.e2e.websocket_client import WebSocketClient, connect_client
from tests.jwt_signing import KEY
from tests.server_process import ServerProcess, serving

KEEPS = [endpoint for endpoint in ENDPOINTS if endpoint.stores_history]
OF_ANN = [endpoint for endpoint in KEEPS if not endpoint.name.startswith("responses")]
SCRIPT = gateway.Script(words=3_000, pace_s=0.02, hurry=20.0)
FIRST_WORDS = "word " * 5
AT_MOST_S = 60.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A gateway over a scripted engine whose reply takes a minute."""
    with serving(tmp_path, gateway.UNHURRIED, command=gateway.command(SCRIPT)) as one:
        yield one


async def test_a_reply_ends_once_and_its_history_is_what_was_sent_whichever_door_it_came_by(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The readers of an event stream resume where they were."""
    async with asyncio.timeout(AT_MOST_S), AsyncExitStack() as stack:
        places, replies = dict[str, str](), dict[str, Reply]()
        for endpoint in KEEPS:
            places[endpoint.name] = conversation_of(endpoint)
            monkeypatch.setattr(endpoints, "CHAT_ID", places[endpoint.name])
            replies[endpoint.name] = await stack.enter_async_context(open_reply(server, endpoint))
        seen = {name: await reply.text(FIRST_WORDS) for name, reply in replies.items()}
        server.kill()
        with suppress(httpx.HTTPError, ConnectionClosed):
            await stack.aclose()
        server.start()
        async with connect_client(server.ws_url, "ann") as ann:
            for endpoint in OF_ANN:
                place = places[endpoint.name]
                history = await cut(ann, place)
                assert_truncated_as_reported(endpoint, history, seen[endpoint.name])
                epoch = ann.seen[-1]["epoch"]
                await ann.put(type="resume", conversation_id=place, epoch=epoch, after_seq=0)
                resumed = await ann.until("resumed")
                assert_reported_once(
                    [await ann.get() for _ in range(resumed["replayed"])], history[-1]["content"]
                )
                assert resumed["live"] is None
        headers = {"Authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(base_url=server.url, headers=headers) as again:
            for name in ("responses", "responses socket"):
                reported = await ended(again, replies[name].events[0]["response"]["id"])
                (message,) = reported["output"]
                assert (reported["status"], message["status"]) == ("failed", "incomplete")
                assert message["content"][0]["text"].startswith(seen[name])
            stream = f"/v1/ai-sdk/chat/{places['ai sdk']}/stream?client_id=ann"
            assert (await again.get(stream)).status_code == 204  # nothing is written any more
            native = [one for one in ann.seen if one.get("conversation_id") == places["native"]]
            reported = await events(again, places["native"], f"{native[0]['epoch']}:0")
            assert_reported_once(reported, native[0]["messages"][-1]["content"])


def conversation_of(endpoint: Endpoint) -> str:
    """Return a conversation of its own for each endpoint; the Realtime API's is in its path."""
    return "ours" if endpoint.name == "realtime" else endpoint.name.replace(" ", "-")


async def cut(ann: WebSocketClient, place: str) -> list[Frame]:
    """Return the messages of a conversation, once its turn has ended."""
    while True:
        history = await ann.history(conversation_id=place)
        if history[-1]["status"] != "running":
            return history


def assert_truncated_as_reported(endpoint: Endpoint, history: list[Frame], seen: str) -> None:
    user, reply = history
    assert (user["content"], reply["status"]) == ("Hello?", "interrupted"), endpoint.name
    assert reply["content"].startswith(seen), endpoint.name
    assert set(reply["content"].split()) == {"word"}


def assert_reported_once(events: list[Frame], content: str) -> None:
    assert [one["reason"] for one in events if one["type"] == "done"] == ["interrupted"]
    assert "".join(one["text"] for one in events if one["type"] == "delta") == content


async def ended(client: httpx.AsyncClient, response_id: str) -> Frame:
    """Return a stored response, once it is no longer being written."""
    while True:
        reported: Frame = (await client.get(f"/v1/responses/{response_id}")).json()
        if reported["status"] != "in_progress":
            return reported


async def events(client: httpx.AsyncClient, place: str, last: str) -> list[Frame]:
    """Return the events of a resumed event stream, up to the end of a turn."""
    reported = list[Frame]()
    path = f"/v1/conversations/{place}/events?client_id=ann"
    async with client.stream("GET", path, headers={"Last-Event-ID": last}) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                reported.append(json.loads(line.removeprefix("data: ")))
                if reported[-1]["type"] == "done":
                    break
    return reported
