"""What an owner looks for is found in their titles and messages, in pages, however much there is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from redis.asyncio import Redis

from sessions.errors import BadParams
from sessions.records import MessageRecord, Owner
from sessions.store.client import pipelined
from sessions.store.codec import Keys, encode_message
from sessions.store.index import BEFORE_CHARS, EXCERPT_CHARS, MAX_WORDS, Hit, Index, QueryWords, Search

ALICE = Owner("anonymous", "alice")
BOB = Owner("anonymous", "bob")


class Shelf:
    """Conversations in the store, each with its messages."""

    def __init__(self, store: Redis) -> None:
        self._store = store
        self._index = Index(store, ttl_s=3600)

    async def put(self, name: str, *texts: str, title: str = "Untitled", owner: Owner = ALICE) -> None:
        """The one that was put last is the newest; so is the last message of each."""
        fields = {
            f"message:m{number}": encode_message(message(f"m{number}", text, at=number))
            for number, text in enumerate(texts)
        }
        facts = {"title": title, "updated_at": "7", "messages": str(len(texts)), "turn:t": "needle"}
        await self._store.hset(Keys.of(owner, name).conversation, mapping={**facts, **fields})  # type: ignore[misc]
        await pipelined(
            self._store, lambda pipe: self._index.queue_touch(pipe, owner=owner, conversation_id=name)
        )

    async def expire(self, name: str) -> None:
        await self._store.delete(Keys.of(ALICE, name).conversation)


def message(name: str, text: str, *, at: int) -> MessageRecord:
    return MessageRecord(
        message_id=name,
        parent_id=None,
        turn_id="t",
        role="user" if at % 2 == 0 else "assistant",
        content=text,
        status="complete",
        created_at=at,
    )


@pytest.fixture
def shelf(store: Redis) -> Shelf:
    return Shelf(store)


def patient(store: Redis) -> Search:
    """A search whose time does not pass."""
    return Search(store, clock=lambda: 0.0)


def hurried(store: Redis) -> Search:
    """A search whose time is over whenever it looks."""
    ticks: Iterator[float] = iter(range(10**9))
    return Search(store, clock=lambda: float(next(ticks)))


async def all_hits(search: Search, query: str, *, limit: int = 20) -> tuple[list[Hit], int]:
    """The hits of all pages, and how many pages there were."""
    hits: list[Hit] = []
    before, pages = None, 0
    while pages == 0 or before is not None:
        found = await search.find(ALICE, query, limit=limit, before=before)
        hits, before, pages = hits + found.hits, found.next, pages + 1
    return hits, pages


async def test_a_message_is_found_by_its_words_in_any_order_and_case(store: Redis, shelf: Shelf) -> None:
    await shelf.put("trees", "Do oaks grow?", "Slowly, but the OAK grows old.", title="Forest")
    found = await patient(store).find(ALICE, "grows oak", limit=5, before=None)
    (hit,) = found.hits
    assert (hit.conversation_id, hit.title, hit.message_id, hit.role) == (
        "trees",
        "Forest",
        "m1",
        "assistant",
    )
    assert hit.snippet == "Slowly, but the OAK grows old."
    assert hit.snippet[hit.off : hit.off + hit.len] == "grows"
    assert found.next is None


async def test_the_newest_message_is_told_or_the_title_where_no_message_is_found(
    store: Redis, shelf: Shelf
) -> None:
    """A message that can't be read hides no other, and what has expired is not found."""
    await shelf.put("gone", "oak")
    await shelf.expire("gone")
    await shelf.put("trees", "oak one", "oak two", "no tree")
    await shelf.put("titled", "Hello.", title="On oaks")
    hits = (await patient(store).find(ALICE, "oak", limit=5, before=None)).hits
    hit, titled = sorted(hits, key=lambda found: found.conversation_id != "trees")
    assert (titled.message_id, titled.role, titled.snippet) == (None, None, "On oaks")
    assert (titled.off, titled.len) == (3, 3)
    assert hit.message_id == "m1"
    await store.hset(Keys.of(ALICE, "trees").conversation, "message:m1", b"[broken")  # type: ignore[misc]
    hits = (await patient(store).find(ALICE, "oak", limit=5, before=None)).hits
    assert "m0" in {hit.message_id for hit in hits}


async def test_nobody_finds_what_is_anothers_or_is_no_text(store: Redis, shelf: Shelf) -> None:
    await shelf.put("mine", "nothing here")
    await shelf.put("theirs", "a needle", title="needle", owner=BOB)
    assert (await patient(store).find(ALICE, "needle", limit=5, before=None)).hits == []


@pytest.mark.parametrize("limit", [1, 7, 100])
async def test_pages_have_every_hit_once_newest_first(store: Redis, shelf: Shelf, limit: int) -> None:
    for number in range(25):
        await shelf.put(f"c{number:02}", "oak" if number % 3 == 0 else "ash")
    hits, _ = await all_hits(patient(store), "oak", limit=limit)
    assert [hit.conversation_id for hit in hits] == [f"c{number:02}" for number in range(24, -1, -3)]


async def test_a_page_ends_when_its_time_is_over_and_the_next_goes_on(store: Redis, shelf: Shelf) -> None:
    """Amid a conversation of many messages, too, whose title is not found twice."""
    for number in range(5):
        await shelf.put(f"c{number}", "oak")
    await shelf.put("long", *(f"ash {number} " + "x" * 100 for number in range(900)), title="elm")
    hits, pages = await all_hits(hurried(store), "oak")
    assert [hit.conversation_id for hit in hits] == [f"c{number}" for number in range(4, -1, -1)]
    assert pages > 10
    assert [hit.conversation_id for hit in (await all_hits(hurried(store), "elm"))[0]] == ["long"]


async def test_a_conversation_that_goes_on_meanwhile_does_not_hide_others(store: Redis, shelf: Shelf) -> None:
    for number in range(12):
        await shelf.put(f"c{number:02}", "oak")
    search = patient(store)
    first = await search.find(ALICE, "oak", limit=4, before=None)
    await shelf.put(first.hits[-1].conversation_id, "oak")
    rest = await search.find(ALICE, "oak", limit=100, before=first.next)
    names = [hit.conversation_id for hit in rest.hits]
    assert names[-1] == "c00"
    assert {f"c{number:02}" for number in range(8)} <= set(names)


async def test_a_cursor_of_ones_own_making_is_refused(store: Redis) -> None:
    for cursor in ("", "x", "1/2", "1/-2/c", "1/2/", "\u0661/0/c", f"{'9' * 30}/0/c"):
        with pytest.raises(BadParams, match="before"):
            await patient(store).find(ALICE, "oak", limit=4, before=cursor)


@example("oak", "long words " * 10, "")
@given(st.text(min_size=1, max_size=30).filter(str.strip), st.text(max_size=300), st.text(max_size=300))
def test_an_excerpt_shows_a_bounded_part_with_what_was_found(query: str, before: str, behind: str) -> None:
    words = QueryWords(query)
    text = before + query + behind
    assert words.are_in(text)
    excerpt = words.excerpt(text)
    assert len(excerpt.snippet) <= EXCERPT_CHARS
    assert excerpt.off <= BEFORE_CHARS + 1
    found = excerpt.snippet[excerpt.off : excerpt.off + excerpt.len]
    assert any(word.casefold().startswith(found.casefold()) or found == "" for word in query.split())


def test_a_query_has_a_bounded_number_of_words() -> None:
    words = " ".join(f"w{number:02}" for number in range(MAX_WORDS))
    assert QueryWords(f"{words} missing").are_in(words)
    assert not QueryWords(f"missing {words}").are_in(words)
