"""What the Python client asks beside messages: lists in pages, titles, cancels by place, acknowledgements, following."""

from __future__ import annotations

from pathlib import Path

import pytest

import midstream
from engine.scripted import ScriptedEngine
from tests.app.in_process_service import InProcessService, serving

LONG = "word " * 20_000


async def test_a_conversation_is_listed_renamed_found_shared_and_deleted(running: InProcessService) -> None:
    async with midstream.connect(running.ws_url) as client:
        assert 0 < await client.ping() < 60
        await (await client.send("About old trees.", conversation_id="trees")).wait()
        assert [row["title"] for row in await client.conversations()] == ["About old trees."]
        assert (await client.rename("trees", " Old  trees "))["title"] == "Old trees"
        assert [row["title"] for row in await client.conversations()] == ["Old trees"]
        found = await client.search("trees old")
        assert [(hit["conversation_id"], hit["snippet"]) for hit in found] == [("trees", "About old trees.")]
        assert found.next is None
        assert await client.search("stones") == []
        share_id = await client.share("trees")
        assert await client.share("trees") == share_id
        await client.unshare("trees")
        assert await client.share("trees") != share_id
        for refused in (
            client.rename("stones", "Old stones"),
            client.share("stones"),
            client.delete("stones"),
        ):
            with pytest.raises(midstream.Refused, match="not_found"):
                await refused
        await client.delete("trees")
        assert await client.conversations() == []


async def test_lists_are_read_page_by_page(running: InProcessService) -> None:
    async with midstream.connect(running.ws_url) as client:
        for number in range(3):
            await (await client.send(f"Message {number}.", conversation_id=f"c{number}")).wait()
        newest = await client.conversations(limit=2)
        oldest = await client.conversations(limit=2, before=newest[-1]["conversation_id"])
        assert [row["conversation_id"] for row in newest + oldest] == ["c2", "c1", "c0"]
        assert (newest.has_more, oldest.has_more) == (True, False)
        (reply,) = newest_page = await client.history("c0", limit=1)
        (requested,) = await client.history("c0", limit=1, before=reply["message_id"])
        assert (newest_page.has_more, requested["content"]) == (True, "Message 0.")


async def test_what_runs_and_waits_in_a_conversation_is_stopped_by_its_name(
    running: InProcessService,
) -> None:
    running.engine._pace_s = 0.002
    running.engine.script(LONG)
    async with midstream.connect(running.ws_url) as client:
        first = await client.send("Go on.", conversation_id="c")
        text = await anext(aiter(first))
        second = await client.send("And on.", conversation_id="c", on_busy="enqueue")
        assert (await client.cancel("c", seen_off=2))["turn_id"] == first.turn_id
        assert [(await reply.wait())["reason"] for reply in (first, second)] == ["cancelled"] * 2
        assert first.text == text[:2]
        assert (await client.cancel("c"))["already"] is True


async def test_a_message_that_interrupts_keeps_what_was_read_of_the_reply(running: InProcessService) -> None:
    running.engine._pace_s = 0.002
    running.engine.script(LONG)
    async with midstream.connect(running.ws_url) as client:
        first = await client.send("Go on.", conversation_id="c")
        read = ""
        async for text in first:
            read += text
            if len(read) > 20:
                break
        while not first.has_more:  # more has come, and nobody reads it
            await client.ping()
        second = await client.send("Wait!", conversation_id="c", on_busy="interrupt")
        assert (await first.wait())["chars"] == len(read)
        assert first.text == read
        await second.wait()


async def test_a_turn_is_taken_back_by_its_name(running: InProcessService) -> None:
    async with midstream.connect(running.ws_url) as client:
        reply = await client.send("Hello.", conversation_id="c")
        await reply.wait()
        await client.cancel("c", turn_id=reply.turn_id, rollback=True)
        assert await client.history("c") == []


@pytest.mark.parametrize("by_reply", [True, False])
async def test_what_is_acknowledged_counts_as_read(by_reply: bool, tmp_path: Path) -> None:  # noqa: FBT001
    engine = ScriptedEngine(by_hand=True)
    engine.script(["One,", " two,", " three."])
    async with serving(tmp_path, engine) as running, midstream.connect(running.ws_url) as client:
        reply = await client.send("Count.")
        texts = aiter(reply)
        engine.step()
        assert await anext(texts) == "One,"
        if by_reply:
            await reply.ack()
        else:
            await client.ack("default", reply.accepted["seq"] + 1)
        await client.ping()  # which is answered behind the acknowledgement
        engine.step(3)
        done = await reply.wait()
    assert (done["usage"]["acked_tokens"], done["usage"]["sent_tokens"]) == (1, 3)


async def test_the_address_of_the_page_will_do(running: InProcessService) -> None:
    for address in (running.url, f"127.0.0.1:{running.port}"):
        async with midstream.connect(address) as client:
            assert client.ready["model"] == "midstream-demo"
