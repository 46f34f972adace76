"""Shared conversations, as those who have a link read them."""

from __future__ import annotations

import httpx

from tests.app.in_process_service import InProcessService
from tests.app.test_frames import send_and_wait


async def shared_by(running: InProcessService) -> str:
    """Sends a message and shares the conversation; returns the share's id."""
    async with running.socket() as socket:
        assert "share" in socket.ready["features"]
        await send_and_wait(socket, "How do oaks grow?")
        reported = await socket.ask(type="share", conversation_id="default", ref="s")
        assert {**reported, "share_id": ""} == {
            "type": "shared",
            "ref": "s",
            "conversation_id": "default",
            "share_id": "",
        }
        return str(reported["share_id"])


async def test_whoever_has_the_link_reads_it(running: InProcessService) -> None:
    running.engine.script(["Slowly."])
    share_id = await shared_by(running)
    async with httpx.AsyncClient(base_url=running.url) as client:
        answer = await client.get(f"/v1/shares/{share_id}")
        page = await client.get(f"/s/{share_id}")
    assert answer.status_code == 200
    assert (answer.headers["cache-control"], answer.headers["x-robots-tag"]) == (
        "no-store",
        "noindex, nofollow",
    )
    reported = answer.json()
    assert reported["title"] == "How do oaks grow?"
    assert "next" not in reported
    assert [message["content"] for message in reported["messages"]] == ["How do oaks grow?", "Slowly."]
    assert (page.status_code, page.headers["x-robots-tag"]) == (200, "noindex, nofollow")
