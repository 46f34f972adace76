"""Edits and regenerated replies over a real model: they become siblings, and reuse what was computed."""

from __future__ import annotations

from tests.e2e.websocket_client import assert_no_hole, connect_client, is_end_of, text_of
from tests.server_process import ServerProcess

GREEDY = {"temperature": 0}


async def test_another_reply_is_made_from_what_was_kept_of_the_prompt(
    server: ServerProcess, client_id: str
) -> None:
    """The same content under the same parameters; the prompt is not computed again."""
    async with connect_client(server.ws_url, client_id) as alice:
        text, done = await alice.chat(
            "Please tell me, as briefly as you can: what is 7 plus 8, and what is 3 plus 4?", params=GREEDY
        )
        again = {"type": "regenerate", "message_id": done["message_id"], "params": GREEDY}
        accepted = await alice.send_message("", **again)
        ended = await alice.until(is_end_of(accepted["turn_id"]))
        history = await alice.history()

    assert text_of(alice.seen, accepted["turn_id"]) == text
    assert ended["usage"]["prompt_tokens"] == done["usage"]["prompt_tokens"]
    assert ended["usage"]["cached_tokens"] > 0
    assert history[-1]["siblings"] == [done["message_id"], ended["message_id"]]
    assert_no_hole(alice.seen)
