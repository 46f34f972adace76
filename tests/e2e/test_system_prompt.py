"""An operator's system prompt: the same for every client without its own, computed once, and revealing nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.websocket_client import connect_client
from tests.server_process import ServerProcess, serving

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
