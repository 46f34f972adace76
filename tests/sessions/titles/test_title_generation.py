"""The title that a model wrote stands for the first words alone: what a person wrote stays."""

from __future__ import annotations

from redis.asyncio import Redis

from sessions.records import Owner
from sessions.store.codec import Keys
from sessions.store.index import Index

ALICE = Owner("anonymous", "alice")


async def test_a_title_that_a_person_gave_stays(store: Redis) -> None:
    index = Index(store, ttl_s=60)
    facts = {"epoch": "e", "title": "How do oaks grow?", "updated_at": "1", "messages": "2"}
    await store.hset(Keys.of(ALICE, "room").conversation, mapping=facts)  # type: ignore[misc]
    assert await index.set_title(ALICE, "room", "Oaks", instead_of="How do oaks grow?")
    await index.rename(ALICE, "room", "My trees")
    assert not await index.set_title(ALICE, "room", "Ashes", instead_of="How do oaks grow?")
    assert not await index.set_title(ALICE, "nowhere", "Ashes", instead_of="")
    assert (await index.rename(ALICE, "room", "My trees")).title == "My trees"
