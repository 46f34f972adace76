"""A chat turn over a real socket, a real store and the real model, and its cancels: promises 1 to 5, 8 and 10 to 13."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.websocket_client import (
    Frame,
    WebSocketClient,
    assert_no_hole,
    connect_client,
    has_text,
    is_end_of,
    text_of,
)
from tests.server_process import ServerProcess, serving

LONG = "Count from 1 to 300."
GREEDY = {"temperature": 0}


async def test_a_message_is_answered_by_deltas_and_one_done(server: ServerProcess, client_id: str) -> None:
    """The joined deltas are the text of `done` and of the history."""
    async with connect_client(server.ws_url, client_id) as alice:
        text, done = await alice.chat("What is 7 plus 8?")
        history = await alice.history()

    assert done["reason"] == "stop"
    assert done["saved"]
    assert text
    assert [(message["role"], message["content"], message["status"]) for message in history] == [
        ("user", "What is 7 plus 8?", "complete"),
        ("assistant", text, "complete"),
    ]
    assert_no_hole(alice.seen)


async def test_text_flows_token_by_token(server: ServerProcess, client_id: str) -> None:
    """Nothing waits to fill a batch: a long reply comes in many deltas, each with its token count.

    A gateway that is slower than its engine merges some, and more while other work uses all cores.
    """
    async with connect_client(server.ws_url, client_id) as alice:
        _, done = await alice.chat("Count from 1 to 60.", params={"temperature": 0})

    deltas = [frame for frame in alice.seen if frame["type"] == "delta"]
    assert sum(delta["tokens"] for delta in deltas) == done["usage"]["sent_tokens"]
    assert len(deltas) > done["usage"]["sent_tokens"] / 20


async def test_chinese_and_emoji_arrive_whole(server: ServerProcess, client_id: str) -> None:
    """No delta holds half a character."""
    async with connect_client(server.ws_url, client_id) as alice:
        text, _ = await alice.chat("How do you say 'thank you' in Chinese?", params={"temperature": 0})

    assert "谢谢" in text
    assert not any("\ufffd" in frame["text"] for frame in alice.seen if frame["type"] == "delta")


async def test_a_reply_has_so_much_time(server: ServerProcess, client_id: str) -> None:
    """Text until then is kept."""
    async with connect_client(server.ws_url, client_id) as alice:
        text, done = await alice.chat("Count from 1 to 500.", params={"temperature": 0, "max_time_s": 0.3})
        history = await alice.history()

    assert done["reason"] == "timeout"
    assert "cancel" not in done
    assert (history[-1]["content"], history[-1]["status"]) == (text, "timeout")


async def stop(client: WebSocketClient, turn_id: str, **fields: object) -> tuple[Frame, Frame]:
    """Cancel; return `cancelled` and `done`."""
    await client.put(type="cancel", turn_id=turn_id, ref="stop", **fields)
    cancelled = await client.until("cancelled")
    return cancelled, await client.until(is_end_of(turn_id))


def assert_stopped(done: Frame, cause: str = "client") -> None:
    """A cancelled turn says by whom, and that the engine stopped at once."""
    assert done["reason"] == "cancelled"
    assert done["cancel"]["cause"] == cause
    assert done["cancel"]["steps_after"] <= 1


async def test_between_tokens(server: ServerProcess, client_id: str) -> None:
    """The history keeps exactly the text that was received, and the next turn goes on from there."""
    async with connect_client(server.ws_url, client_id) as alice:
        accepted = await alice.send_message(LONG, params=GREEDY)
        await alice.until(has_text(accepted["turn_id"], 40))
        cancelled, done = await stop(alice, accepted["turn_id"])
        history = await alice.history()
        _, after = await alice.chat("What is 2 plus 3?")

    assert cancelled == {"type": "cancelled", "ref": "stop", "turn_id": accepted["turn_id"], "already": False}
    assert_stopped(done)
    assert history[-1]["content"] == text_of(alice.seen, accepted["turn_id"])
    assert history[-1]["status"] == "cancelled"
    assert after["reason"] == "stop"
    assert_no_hole(alice.seen)


async def test_in_the_first_moment(server: ServerProcess, client_id: str) -> None:
    """A cancel directly after its message finds it, even before it is accepted."""
    async with connect_client(server.ws_url, client_id) as alice:
        await alice.put(type="send", client_msg_id="m", content=LONG)
        await alice.put(type="cancel")
        done = await alice.until("done")

    assert_stopped(done)
    assert done["chars"] == 0
    assert done["usage"]["generated_tokens"] <= 1


async def test_in_prefill(server: ServerProcess, client_id: str) -> None:
    """A long prompt is computed in chunks, and cancels are read between them."""
    async with connect_client(server.ws_url, client_id) as alice:
        accepted = await alice.send_message("repeat " * 3000)
        _, done = await stop(alice, accepted["turn_id"])

    assert_stopped(done)
    assert done["usage"]["generated_tokens"] == 0


async def test_a_client_that_leaves_stops_costing_gpu_time(server: ServerProcess, client_id: str) -> None:
    """The reply ends where the connection did, and the history says so."""
    async with connect_client(server.ws_url, client_id) as alice:
        accepted = await alice.send_message(LONG, params=GREEDY)
        await alice.until(has_text(accepted["turn_id"], 20))
    async with connect_client(server.ws_url, client_id) as again:
        history = await again.history()
        if history[-1]["status"] == "running":
            await again.until(is_end_of(accepted["turn_id"]))
            history = await again.history()

    assert history[-1]["status"] == "cancelled"
    assert history[-1]["content"].startswith("1, 2, 3, ")
    assert len(history[-1]["content"]) < 600
    assert 'midstream_cancels_total{cause="disconnect"}' in await metrics(server)


async def metrics(server: ServerProcess) -> str:
    """Return the text of `/metrics`."""
    with await asyncio.to_thread(urllib.request.urlopen, f"{server.url}/metrics") as answer:
        return str(answer.read().decode())


SYSTEM = "You are the assistant of a small bookshop by the sea, and you never tell anybody the code 7351."
SHORT: dict[str, Any] = {"max_new_tokens": 2}


@pytest.fixture(scope="module")
def bookshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A running server with a system prompt in a file."""
    folder: Path = tmp_path_factory.mktemp("bookshop")
    (folder / "system.txt").write_text(SYSTEM)
    with serving(folder, {"MIDSTREAM_SYSTEM_PROMPT": f"@{folder}/system.txt"}) as server:
        yield server


async def test_it_is_computed_once_for_all_clients_and_their_words_are_not_shared(
    bookshop: ServerProcess, client_id: str
) -> None:
    """A client that repeats another's words finds no more in the cache than one with different words."""
    secret = "My locker in the back room has the code 9254, don't tell."
    async with (
        connect_client(bookshop.ws_url, f"{client_id}-a") as alice,
        connect_client(bookshop.ws_url, f"{client_id}-b") as bob,
        connect_client(bookshop.ws_url, f"{client_id}-c") as carol,
    ):
        _, first = await alice.chat(secret, params=SHORT)
        _, same_words = await bob.chat(secret, params=SHORT)
        _, other_words = await carol.chat("Hello!", params=SHORT)

    assert 16 <= same_words["usage"]["cached_tokens"] == other_words["usage"]["cached_tokens"]
    assert same_words["usage"]["cached_tokens"] < first["usage"]["prompt_tokens"] - 16


async def test_a_client_that_names_its_own_gets_its_own_and_learns_nothing_of_the_operators(
    bookshop: ServerProcess, client_id: str
) -> None:
    """Not even a client that guesses every word of it, after a conversation of its own under it."""
    async with connect_client(bookshop.ws_url, client_id) as eve:
        _, under = await eve.chat("Hello!", params=SHORT)
        _, guessed = await eve.chat("Hello!", conversation_id="guess", params=SHORT | {"system": SYSTEM})
        _, own = await eve.chat("Hello!", conversation_id="own", params=SHORT | {"system": "Be kind."})

    assert under["usage"]["prompt_tokens"] == guessed["usage"]["prompt_tokens"]
    assert own["usage"]["prompt_tokens"] < under["usage"]["prompt_tokens"]
    assert guessed["usage"]["cached_tokens"] == own["usage"]["cached_tokens"] == 0
