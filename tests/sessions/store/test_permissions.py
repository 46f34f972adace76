"""A user of the store that may run what the guide lists, and nothing else."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from sessions.records import Owner
from sessions.turn.turn import Cancel
from tests.sessions.chat_driver import CONVERSATION_ID, serving
from tests.sessions.recorder import Recorder

ROOT = Path(__file__).resolve().parents[3]

COMMANDS = (
    *(
        "ping",
        "info",
        "time",
        "select",
        "client|setinfo",
        "memory|usage",
        "scan",
        "evalsha",
        "eval",
        "script|load",
    ),
    *("get", "set", "getdel", "getex", "del", "unlink", "exists", "type", "rename"),
    *("expire", "expireat", "pexpire", "pttl", "incrby"),
    *("hget", "hset", "hsetnx", "hmget", "hgetall", "hdel", "hexists", "hincrby", "hkeys", "hlen", "hstrlen"),
    *("hrandfield", "hscan"),
    *("lindex", "lpop", "lrange", "rpush", "sadd", "srem", "sismember", "smembers"),
    *("xadd", "xrange", "xrevrange", "xtrim"),
    *("zadd", "zcard", "zcount", "zrange", "zrem", "zremrangebyrank", "zremrangebyscore"),
    *("zrevrange", "zrevrank", "zscore", "publish", "subscribe", "unsubscribe"),
)
"""Commands that every store is sent."""


def rule(commands: Iterable[str]) -> str:
    """Return an ACL that allows these commands on our keys and channels, and nothing else."""
    return " ".join(["~ms:*", "&ms:*", "-@all", *(f"+{command}" for command in commands)])


async def allow(store: Redis, *commands: str) -> None:
    words = rule(commands).split()
    await store.execute_command("ACL", "SETUSER", "narrow", "reset", "on", ">secret", *words)


@pytest.fixture
async def narrow(store: Redis, store_url: str) -> AsyncIterator[Redis]:
    """The store as such a user has it; what was denied to anybody is in its log."""
    await allow(store, *COMMANDS)
    await store.execute_command("ACL", "LOG", "RESET")
    async with Redis.from_url(store_url, username="narrow", password="secret") as client:
        yield client
    await store.execute_command("ACL", "DELUSER", "narrow")


async def denied(store: Redis) -> list[Any]:
    log: Any = await store.execute_command("ACL", "LOG")
    return [entry[b"object"] for entry in log]


async def test_all_that_people_do_needs_no_more_than_the_guide_lists(
    narrow: Redis, store: Redis, owner: Owner
) -> None:
    async with (
        serving(narrow, alone=False, sharing=True) as chat,
        serving(narrow, alone=False, sharing=True) as other,
    ):
        await chat.exchange("Hello?")
        await other.history()
        first = await chat.running("One?", "This", client_msg_id="one")
        assert (await other.send("One?", client_msg_id="one")).duplicate
        await other.sessions.cancel_elsewhere(owner, Cancel(turn_id=first.turn_id))
        await chat.wait_idle()
        await chat.sessions.take_back(owner, CONVERSATION_ID, first.turn_id)
        late = Recorder()
        await chat.resume(late, 0)
        chat.leave(late)
        await chat.sessions.rename(owner, CONVERSATION_ID, "Greetings")
        assert (await chat.sessions.search(owner, "hello", limit=10, before=None)).hits
        link = await chat.sessions.share(owner, CONVERSATION_ID)
        assert (await other.sessions.shared(link, before=None)).messages
        assert [row async for row in chat.sessions.export(owner)]
        assert len([one async for one in chat.sessions.erase(owner)]) == 1
        for one in (chat, other):
            one.leave()
    assert await denied(store) == []


def test_the_guide_lists_them() -> None:
    guide = (ROOT / "deploy" / "README.md").read_text().replace(" \\\n", " ")
    assert f"on >PASSWORD {rule(COMMANDS)}\n" in guide


def test_no_script_runs_another_command() -> None:
    files = [*ROOT.glob("sessions/store/lua/*.lua"), *ROOT.glob("sessions/limits/lua/*.lua")]
    assert len(files) > 20
    called = {
        name.lower() for file in files for name in re.findall(r"redis\.p?call\('(\w+)'", file.read_text())
    }
    assert called <= {name.partition("|")[0] for name in COMMANDS}
    assert not [file for file in files if re.search(r"redis\.p?call\([^']", file.read_text())]


async def test_a_user_that_may_not_ask_for_sizes_has_conversations_counted_all_the_same(
    narrow: Redis, store: Redis
) -> None:
    """Permissions of earlier versions lack it."""
    await allow(store, *(name for name in COMMANDS if name != "memory|usage"))
    async with serving(narrow, alone=False) as chat:
        await chat.exchange("Hello?" * 20)
        await chat.wait_idle()
        chat.leave()
    charged: Any = await store.hget(chat.keys.conversation, "charged")  # type: ignore[misc]
    taken = int(await store.memory_usage(chat.keys.conversation, samples=0) or 0)
    assert 0.5 * taken < int(charged.split()[1]) < 2 * taken
