"""Who has a link reads a branch as it was shared, until it is taken back."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from sessions.errors import NotFound
from sessions.records import Owner
from sessions.store.codec import encode_message
from sessions.store.history import History
from sessions.store.owner_data import Sharing
from tests.sessions.store.test_scripts import KEYS, exchange, message

ALICE = Owner("anonymous", "alice")


@pytest.fixture
def history(store: Redis) -> History:
    return History(store, ttl_s=60, replica="here")


@pytest.fixture
def sharing(store: Redis, history: History) -> Sharing:
    return Sharing(store, history=history, ttl_s=60)


async def ids(sharing: Sharing, share_id: str) -> list[str]:
    page = await sharing.read(share_id, before=None)
    return [message.message_id for message in page.messages]


async def test_a_share_is_read_as_it_was(sharing: Sharing, history: History, store: Redis) -> None:
    """What is said later is not shared, not even in the same reply; sharing again shares it, under the same link."""
    with pytest.raises(NotFound):
        await sharing.share(ALICE, "room")
    assert await store.keys() == []
    await exchange(history, "a", seq=1)
    share_id = await sharing.share(ALICE, "room")
    page = await sharing.read(share_id, before=None)
    assert [(one.role, one.content) for one in page.messages] == [("user", "Hello?"), ("assistant", "Hi")]
    assert page.next is None
    await exchange(history, "b", seq=3, parent="reply-a")
    assert await ids(sharing, share_id) == ["user-a", "reply-a"]
    longer = message("reply-a", "user-a", role="assistant", content="Hi, and more")
    await store.hset(KEYS.conversation, "message:reply-a", encode_message(longer))  # type: ignore[misc]
    page = await sharing.read(share_id, before=None)
    assert page.messages[-1].content == "Hi"
    assert await sharing.share(ALICE, "room") == share_id
    assert await ids(sharing, share_id) == ["user-a", "reply-a", "user-b", "reply-b"]


@pytest.mark.parametrize(("bound", "size", "count"), [("PAGE", 3, 3), ("PAGE_BYTES", 1, 1)])
async def test_long_shares_come_in_pages_of_one_message_at_least(  # noqa: PLR0917 - fixtures
    sharing: Sharing, history: History, monkeypatch: pytest.MonkeyPatch, bound: str, size: int, count: int
) -> None:
    monkeypatch.setattr(f"sessions.store.owner_data.{bound}", size)
    await exchange(history, "a", seq=1)
    await exchange(history, "b", seq=3, parent="reply-a")
    share_id, found, before = await sharing.share(ALICE, "room"), list[str](), None
    while not found or before is not None:
        page = await sharing.read(share_id, before=before)
        assert len(page.messages) == min(count, 4 - len(found))
        found = [*(one.message_id for one in page.messages), *found]
        before = page.next
    assert found == ["user-a", "reply-a", "user-b", "reply-b"]


async def test_no_more_is_read_for_a_page_than_fits_it(
    sharing: Sharing, history: History, store: Redis
) -> None:
    """Whoever has a link may ask, and nobody knows who it is."""
    parent = None
    for number in range(6):
        await exchange(history, f"t{number}", seq=2 * number + 1, parent=parent)
        parent = f"reply-t{number}"
        longer = message(parent, f"user-t{number}", role="assistant", content="b" * 100_000)
        await store.hset(KEYS.conversation, f"message:{parent}", encode_message(longer))  # type: ignore[misc]
    share_id = await sharing.share(ALICE, "room")
    before = (await store.info("stats"))["total_net_output_bytes"]
    page = await sharing.read(share_id, before=None)
    assert (page.messages[0].message_id, len(page.messages)) == ("user-t4", 4)
    assert (await store.info("stats"))["total_net_output_bytes"] - before < 400_000
    assert (await sharing.read(share_id, before=page.next)).messages[-1].message_id == "reply-t3"


async def test_a_cursor_of_ones_own_making_leads_nowhere(sharing: Sharing, history: History) -> None:
    """To other branches neither, and no odd name is looked up."""
    await exchange(history, "a", seq=1)
    share_id = await sharing.share(ALICE, "room")
    for cursor in ("", "reply-a", "reply-a.", f"reply-a.{'0' * 32}", "é.é"):
        with pytest.raises(NotFound, match="before"):
            await sharing.read(share_id, before=cursor)
    for name in ("", "x", "x" * 23, "../../" * 4, "é" * 22):
        with pytest.raises(NotFound):
            await sharing.read(name, before=None)


async def test_a_link_that_was_taken_back_leads_nowhere(sharing: Sharing, history: History) -> None:
    await exchange(history, "a", seq=1)
    share_id = await sharing.share(ALICE, "room")
    await sharing.take_back(ALICE, "room")
    with pytest.raises(NotFound):
        await sharing.read(share_id, before=None)
    await sharing.take_back(ALICE, "room")
    again = await sharing.share(ALICE, "room")
    assert again != share_id
    await history.delete(KEYS)
    with pytest.raises(NotFound):
        await sharing.read(again, before=None)


async def test_one_half_alone_is_no_share(sharing: Sharing, history: History, store: Redis) -> None:
    await exchange(history, "a", seq=1)
    share_id = await sharing.share(ALICE, "room")
    await store.hset(KEYS.conversation, "share", "x" * 22)  # type: ignore[misc]
    with pytest.raises(NotFound):
        await sharing.read(share_id, before=None)
    with pytest.raises(NotFound):
        await sharing.read("x" * 22, before=None)
