"""The Python client continues a reply that was cut."""

from __future__ import annotations

import midstream
from tests.app.in_process_service import InProcessService

LIMIT = {"max_new_tokens": 2}


async def test_the_python_client_gives_what_comes_behind_the_text(running: InProcessService) -> None:
    async with midstream.connect(running.ws_url) as client:
        running.engine.script("One two three four")
        first = await client.send("Count!", params=LIMIT)
        done = await first.wait()
        running.engine.script(" three four")
        more = await client.continue_reply(done["message_id"])
        assert [text async for text in more]
        assert (more.off, more.text) == (7, " three four")
        assert more.done is not None
        assert more.done["chars"] == 18
        history = await client.history()
    assert history[-1]["content"] == first.text + more.text


async def test_the_python_client_stops_it_where_it_was_seen(running: InProcessService) -> None:
    running.engine._pace_s = 0.002
    async with midstream.connect(running.ws_url) as client:
        running.engine.script("One two three four")
        done = await (await client.send("Count!", params=LIMIT)).wait()
        running.engine.script(" more" * 1000)
        more = await client.continue_reply(done["message_id"])
        async for _ in more:
            await more.cancel()
        history = await client.history()
    assert more.done is not None
    assert more.done["reason"] == "cancelled"
    assert history[-1]["content"] == "One two" + more.text
