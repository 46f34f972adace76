"""The list of an owner's conversations, newest first, and the search in them."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from typing import Any

import msgspec
import structlog
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from sessions.errors import BadParams, NotFound
from sessions.events import Languages
from sessions.records import MessageRecord, Owner
from sessions.store.client import RENAME, TOUCH, queue_script, run_script
from sessions.store.codec import Keys, decode_message
from sessions.store.ledger import Admission
from sessions.store_errors import store_errors

MAX_LISTED = 10_000
"""Conversations in an owner's list. Older ones leave it, and are found by their id until they expire."""
SLACK_MS = 2 * 24 * 3600 * 1000
"""A conversation lives this much longer than its last message: its reply may wait behind another and run for a day."""
ROW = ("title", "updated_at", "messages", "interprets")
"""The fields of a conversation's hash that make its row."""
MAX_WORDS = 16
"""Words of a query; further ones are ignored."""
EXCERPT_CHARS = 160
"""Characters of a snippet: about two lines of a list."""
BEFORE_CHARS = 40
"""Characters of a snippet before the match, at most."""
READ_S = 0.5
"""How long the search for one page takes, approximately: a person waits for it."""
AT_ONCE = 8
"""Conversations that one round trip reads."""
FIELDS = 60
"""Fields of a conversation that are read at once, approximately: some ten messages."""
MAX_DIGITS = 20
"""Most digits of a number in a cursor: the store's numbers have 64 bits."""
_log = structlog.get_logger("midstream.search")


class Listed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A conversation of the list. `updated_at`: Unix milliseconds.

    `interprets`: the languages of a live translation, to show while nobody has changed the title.
    """

    conversation_id: str
    title: str
    updated_at: int
    messages: int
    interprets: Languages | None = None


class Page(msgspec.Struct, frozen=True):
    """Rows, newest first; `has_more` if older ones exist."""

    conversations: list[Listed]
    has_more: bool


class Index:
    """The list of conversations of each owner. Every method raises StoreDown."""

    def __init__(self, client: Redis, *, ttl_s: float) -> None:
        self._client = client
        self._ttl_ms = int(ttl_s * 1000)

    def queue_touch(
        self, pipe: Pipeline, *, owner: Owner, conversation_id: str, admission: Admission | None = None
    ) -> None:
        """Queue a command that puts a conversation at the head of the list, by the store's clock.

        It also removes rows beyond the limit, and expired ones: the owner may never read the list. `admission`: of new bytes;
        without room for them nothing changes, and the answer says so.
        """
        ledgers, args = ((), ()) if admission is None else (admission.ledgers, admission.args)
        listed = (conversation_id, self._ttl_ms, SLACK_MS, MAX_LISTED)
        queue_script(pipe, TOUCH, [list_name(owner), *ledgers], [*listed, *args])

    async def forget(self, owner: Owner, conversation_id: str) -> None:
        """Remove a conversation from the list."""
        with store_errors():
            await self._client.zrem(list_name(owner), conversation_id)

    async def page(self, owner: Owner, *, limit: int, before: str | None) -> Page:
        """Return up to `limit` conversations that follow `before` in the list. Raises NotFound too."""
        with store_errors():
            first = 0
            if before is not None:
                rank: Any = await self._client.zrevrank(list_name(owner), before)
                if rank is None:
                    raise NotFound(f'`before` names no conversation of yours: "{before}".')
                first = rank + 1
            ids: Any = await self._client.zrevrange(list_name(owner), first, first + limit)
            rows = await self._rows(owner, [found.decode() for found in ids])
        listed = [row for row in rows if isinstance(row, Listed)]
        return Page(listed[:limit], len(ids) > limit)

    async def rename(self, owner: Owner, conversation_id: str, title: str) -> Listed:
        """Change a conversation's title; return its row. Raises NotFound too."""
        keys = Keys.of(owner, conversation_id)
        row = await run_script(self._client, RENAME, [keys.conversation], [title])
        if row is None:
            raise NotFound(f'There is no conversation "{conversation_id}".')
        return listed(conversation_id, row)

    async def set_title(self, owner: Owner, conversation_id: str, title: str, *, instead_of: str) -> bool:
        """Replace a conversation's title if it is still the given one; return whether it was."""
        keys = Keys.of(owner, conversation_id)
        return await run_script(self._client, RENAME, [keys.conversation], [title, instead_of]) is not None

    async def _rows(self, owner: Owner, ids: list[str]) -> list[Listed | None]:
        pipe = self._client.pipeline(transaction=False)
        for conversation_id in ids:
            pipe.hmget(Keys.of(owner, conversation_id).conversation, ROW)
        answers = zip(ids, await pipe.execute(), strict=True)
        rows = [None if values[1] is None else listed(found, values) for found, values in answers]
        expired = [found for found, row in zip(ids, rows, strict=True) if row is None]
        if expired:
            await self._client.zrem(list_name(owner), *expired)
        return rows


def listed(conversation_id: str, values: list[Any]) -> Listed:
    """Make a row from the values of `ROW`."""
    title, updated_at, messages, interprets = values
    return Listed(
        conversation_id=conversation_id,
        title=title.decode(),
        updated_at=int(updated_at),
        messages=int(messages),
        interprets=languages(interprets),
    )


def languages(kept: bytes | None) -> Languages | None:
    """Return the languages that a title stands for, as the store has them."""
    return Languages(*kept.decode().split()) if kept else None


def list_name(owner: Owner) -> str:
    """Return the store's name for an owner's list."""
    return f"ms:conversations:{{{owner}}}"


class Hit(Listed, frozen=True, kw_only=True, omit_defaults=True):
    """A conversation that was found. `message_id`: a matching message, of any branch; None: only the title matches.

    `snippet`: a part of the matching message, or of the title. `off`: where the match begins in the snippet, in code points.
    `len`: the length of the match.
    """

    snippet: str
    off: int
    len: int
    message_id: str | None = None
    role: str | None = None


class Found(msgspec.Struct, frozen=True):
    """Hits, newest conversation first. `next`: the cursor of the next page; None if all was searched."""

    hits: list[Hit]
    next: str | None


class Cursor(msgspec.Struct, frozen=True):
    """Where the search ended: after a conversation, or among its fields. `at_ms`: the conversation's time in the list."""

    at_ms: int
    fields: int
    conversation_id: str

    @classmethod
    def read(cls, text: str) -> Cursor:
        """Parse the `next` of an earlier answer. Raises BadParams for any other text."""
        at_ms, _, rest = text.partition("/")
        fields, _, conversation_id = rest.partition("/")
        if not (_is_number(at_ms) and _is_number(fields) and conversation_id):
            raise BadParams("`before` is not the `next` of an answer.", field="before")
        return cls(int(at_ms), int(fields), conversation_id)

    def __str__(self) -> str:
        """Return the cursor's text."""
        return f"{self.at_ms}/{self.fields}/{self.conversation_id}"


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS


class Search:
    """Searches an owner's conversations without an index, newest first, within the time of one answer.

    A page may be incomplete; its cursor continues where reading ended. An index would cost more, at each message, than most people's
    searches ever do. Every method raises StoreDown.
    """

    def __init__(self, client: Redis, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds."""
        self._client = client
        self._clock = clock

    async def find(self, owner: Owner, query: str, *, limit: int, before: str | None) -> Found:
        """Search an owner's titles and messages from a cursor on. Raises BadParams too."""
        cursor = None if before is None else Cursor.read(before)
        words = QueryWords(query)
        with store_errors():
            return await _Reading(self._client, owner, words, self._clock).page(cursor, limit)


class _Reading:
    """The search for one page."""

    def __init__(self, client: Redis, owner: Owner, words: QueryWords, clock: Callable[[], float]) -> None:
        self._client = client
        self._owner = owner
        self._words = words
        self._clock = clock
        self._until = clock() + READ_S
        self._hits: list[Hit] = []

    async def page(self, cursor: Cursor | None, limit: int) -> Found:
        rank = await self._rank(cursor)
        amid = cursor.fields if cursor is not None else 0
        while True:
            listed_now: Any = await self._client.zrevrange(
                list_name(self._owner), rank, rank + AT_ONCE - 1, withscores=True
            )
            if not listed_now:
                return Found(self._hits, None)
            ended = await self._search_batch(
                [(name.decode(), int(at)) for name, at in listed_now], amid, limit
            )
            if ended is not None:
                return Found(self._hits, str(ended))
            rank, amid = rank + len(listed_now), 0

    async def _rank(self, cursor: Cursor | None) -> int:
        """Return how many conversations of the list to skip; the cursor's own may have moved to the head with a new turn."""
        if cursor is None:
            return 0
        name = list_name(self._owner)
        at_ms: Any = await self._client.zscore(name, cursor.conversation_id)
        if at_ms is None or int(at_ms) != cursor.at_ms:
            newer: Any = await self._client.zcount(name, f"({cursor.at_ms}", "+inf")
            return int(newer)
        rank: Any = await self._client.zrevrank(name, cursor.conversation_id)
        return (rank or 0) + (0 if cursor.fields else 1)

    async def _search_batch(self, batch: list[tuple[str, int]], amid: int, limit: int) -> Cursor | None:
        """Search conversations in order; return where the search stopped early, if it did. `amid`: where the first one starts."""
        pipe = self._client.pipeline(transaction=False)
        for place, (name, _) in enumerate(batch):
            key = Keys.of(self._owner, name).conversation
            pipe.hmget(key, ROW)
            pipe.hscan(key, 0 if place else amid, match="message:*", count=FIELDS)
        answers = await pipe.execute()
        for place, (name, at_ms) in enumerate(batch):
            facts, (fields, kept) = answers[2 * place : 2 * place + 2]
            await asyncio.sleep(0)  # the texts may be long; other tasks run in between
            if facts[1] is not None:  # otherwise the conversation has expired
                beginning = not (place == 0 and amid)
                left = await self._search_one(listed(name, facts), fields, kept, beginning=beginning)
                if left is not None:
                    return Cursor(at_ms, left, name)
            if len(self._hits) >= limit or self._clock() >= self._until:
                return Cursor(at_ms, 0, name)
        return None

    async def _search_one(
        self, row: Listed, fields: int, kept: dict[bytes, bytes], *, beginning: bool
    ) -> int | None:
        """Search one conversation. Return where among its fields the search ended early, if it did."""
        while (hit := self._hit(row, kept, beginning=beginning)) is None and fields:
            if self._clock() >= self._until:
                return fields
            key = Keys.of(self._owner, row.conversation_id).conversation
            some: Any = await self._client.hscan(key, fields, match="message:*", count=FIELDS)
            fields, kept = some
            beginning = False
        if hit is not None:
            self._hits.append(hit)
        return None

    def _hit(self, row: Listed, kept: dict[bytes, bytes], *, beginning: bool) -> Hit | None:
        messages = (_message(field, value) for field, value in kept.items())
        found = [message for message in messages if message and self._words.are_in(message.content)]
        if found:
            return self._hit_of(row, max(found, key=lambda message: message.created_at))
        return self._hit_of(row, None) if beginning and self._words.are_in(row.title) else None

    def _hit_of(self, row: Listed, message: MessageRecord | None) -> Hit:
        excerpt = self._words.excerpt(row.title if message is None else message.content)
        return Hit(
            **msgspec.structs.asdict(row),
            **msgspec.structs.asdict(excerpt),
            message_id=None if message is None else message.message_id,
            role=None if message is None else message.role,
        )


def _message(field: bytes, kept: bytes) -> MessageRecord | None:
    """Return a message; None if its record can't be read: the others may match."""
    message_id = field.decode().partition(":")[2]
    try:
        return decode_message(kept, message_id=message_id, parent_id=None)
    except msgspec.DecodeError:
        _log.warning("a message can't be read", message_id=message_id)
        return None


class Excerpt(msgspec.Struct, frozen=True):
    """A part of a text. `off`, `len`: the place of the match in it, in code points."""

    snippet: str
    off: int
    len: int


class QueryWords:
    """The words of a query. A text matches if it has each of them, in any order and case, also within longer words."""

    def __init__(self, query: str) -> None:
        """Take a query that is not blank."""
        words = list(dict.fromkeys(query.split()))[:MAX_WORDS]
        self._folded = [word.casefold() for word in words]
        # a snippet is cut around the longest word, the most telling one
        self._first = re.compile(re.escape(max(words, key=len)), re.IGNORECASE)

    def are_in(self, text: str) -> bool:
        """Return whether a text has all of the words."""
        folded = text.casefold()
        return all(word in folded for word in self._folded)

    def excerpt(self, text: str) -> Excerpt:
        """Return a snippet of a text around the match, with white space collapsed; its beginning if there is no match."""
        found = self._first.search(text)  # there may be none, since upper and lower case can differ in length
        start, end = (found.start(), found.end()) if found else (0, 0)
        before = " ".join(text[max(0, start - 2 * BEFORE_CHARS) : start].split())
        if len(before) > BEFORE_CHARS:  # begin with a whole word, unless words are long
            before = before[-BEFORE_CHARS:].partition(" ")[2] or before[-BEFORE_CHARS:]
        match = " ".join(text[start:end].split())
        after = " ".join(text[end : end + 2 * EXCERPT_CHARS].split())
        if before and text[start - 1].isspace():
            before += " "
        if after and text[end : end + 1].isspace():
            after = f" {after}"
        return Excerpt((before + match + after)[:EXCERPT_CHARS], len(before), len(match))
