"""The memory of a conversation in Redis: `python -m tests.bench.storage [exchanges] [tokens]`, on the embedded store.

It talks through the sessions floor with a scripted engine, then asks the store for the memory of the conversation's keys:
while readers may still resume in the middle of a reply, and once their journal is compacted.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import structlog
from redis.asyncio import Redis

from engine.scripted import ScriptedEngine
from sessions.records import Owner
from sessions.service import Sessions
from sessions.store.client import connect
from sessions.store.codec import Keys
from sessions.store.embedded import embedded_store
from sessions.store.journal import Compaction
from sessions.turn.policy import Policy
from tests.sessions.chat_driver import Chat
from tests.sessions.recorder import Recorder

OWNER = Owner("key:somebody", "00112233445566778899aabbccddeeff")
PER_EXCHANGE = 1024
PER_TEXT = 1.3
_TEXT = """the of and a to in is you that it for on are with as at be this have from or one had by word but not what
all were"""
_WORDS = _TEXT.split()


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a conversation of so many `exchanges`; `text` in UTF-8, the user's and the replies'."""

    exchanges: int
    text: int
    before: int
    after: int

    @property
    def bound(self) -> float:
        """The most bytes that it may take once its journal is compacted."""
        return PER_TEXT * self.text + PER_EXCHANGE * self.exchanges

    def __str__(self) -> str:
        each = self.exchanges
        return (
            f"{each} exchanges, {self.text / each:,.0f} bytes of text each\n"
            f"before compaction  {self.before:>12,} bytes  {self.before / each:>10,.0f} an exchange  {self.before / self.text:6.2f} x the text\n"
            f"after              {self.after:>12,} bytes  {self.after / each:>10,.0f} an exchange  {self.after / self.text:6.2f} x the text\n"
            f"bound              {self.bound:>12,.0f} bytes  {self.bound / each:>10,.0f} an exchange"
        )


async def cost(store: Redis, *, exchanges: int, tokens: int) -> Cost:
    """Talk, and measure. The store must be empty."""
    engine = ScriptedEngine(context_tokens=1_000_000, by_hand=True)
    sessions = Sessions(client=store, engine=engine, policy=Policy(ttl_s=3600, max_turns=10))
    chat = Chat(sessions, engine, OWNER, Recorder())
    words = random.Random(13)
    text = 0
    async with sessions.running(alone=True):
        for number in range(exchanges):
            requested = f"Question {number}: what comes next, and why does it?"
            reply = [f" {words.choice(_WORDS)}" for _ in range(tokens)]
            text += len(requested.encode()) + len("".join(reply).encode())
            engine.script(reply)
            await chat.running(requested, "".join(reply), client_msg_id=f"{words.getrandbits(128):032x}")
            engine.step()
            await chat.wait_idle()
            chat.reader.events.clear()
        before = await _bytes(store, chat.keys)
        due: Any = await store.keys("ms:compaction:*")
        await store.zadd(due[0], {chat.keys.conversation: 1})
        await Compaction(store, ttl_s=3600, window_s=0).compact()
        after = await _bytes(store, chat.keys)
        chat.leave()
    return Cost(exchanges=exchanges, text=text, before=before, after=after)


async def _bytes(store: Redis, keys: Keys) -> int:
    sizes = [await store.memory_usage(key, samples=0) for key in keys.pair()]
    return sum(int(size or 0) for size in sizes)


async def main(exchanges: int, tokens: int) -> int:
    """Print the bytes; return 1 if they are above the limit."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    with tempfile.TemporaryDirectory() as folder:
        async with embedded_store(Path(folder)) as url, connect(url) as store:
            found = await cost(store, exchanges=exchanges, tokens=tokens)
    print(found)
    return 0 if found.after <= found.bound else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*(int(given) for given in (sys.argv[1:] or ["100", "300"])))))
