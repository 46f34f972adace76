"""A request may hold a whole conversation of megabytes: another thread makes of it what a model is asked."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import pytest

from connections.http.exchange import LARGE_BODY_BYTES
from tests.app.in_process import Running

DOORS: dict[str, tuple[str, dict[str, Any]]] = {
    "/v1/chat/completions": ("connections.openai.chat_door.ask_of", {"max_tokens": 5}),
    "/v1/messages": ("connections.messages.door.ask_of", {"max_tokens": 5}),
    "/v1/ag-ui": ("connections.agui.door.ask_of", {"threadId": "t", "runId": "r"}),
}


@pytest.mark.parametrize("path", DOORS)
async def test_a_long_conversation_is_gone_through_beside_the_event_loop(
    path: str, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, body = DOORS[path]
    made_by: list[threading.Thread] = []
    module, _, name = where.rpartition(".")
    made = getattr(__import__(module, fromlist=[name]), name)

    def noting(*given: object) -> object:
        made_by.append(threading.current_thread())
        return made(*given)

    monkeypatch.setattr(where, noting)
    short = [{"id": "m", "role": "user", "content": "Hello!"}]
    long = [{"id": "m", "role": "user", "content": "x" * 1_000}] * (LARGE_BODY_BYTES // 1_000 + 1)
    async with httpx.AsyncClient(base_url=running.url) as client:
        for messages in (short, long):
            await client.post(path, json={"model": "midstream-demo", "messages": messages} | body)
    assert [one is threading.main_thread() for one in made_by] == [True, False]
