"""Scripts and pipelines on the Redis client.

A retry may repeat a write. That is safe: every write is a Lua script that recognises its own repetition.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import redis.exceptions as errors
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from sessions.store_errors import store_errors

LUA = Path(__file__).parent.parent / "lua"


class Script:
    """A Lua script by its SHA-1; `parts` are files put together in order."""

    def __init__(self, *parts: str) -> None:
        self.source = "\n".join((LUA / f"{part}.lua").read_text() for part in parts)
        self.sha = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()


ACCEPT = Script("tree", "tell", "watchers", "ends", "accept")
APPEND = Script("tree", "take_out", "tell", "ends", "append")
FINISH = Script("tree", "take_out", "tell", "ends", "ledger", "weigh", "finish")
REMOVE = Script("tree", "take_out", "tell", "ends", "ledger", "weigh", "remove")
WITHDRAW = Script("tree", "take_out", "tell", "ends", "withdraw")
BRANCH = Script("tree", "calls", "branch")
ACTIVATE = Script("tree", "tell", "activate")
NOTE = Script("ledger", "weigh", "note")
COUNT_NOTE = Script("count_note")
DESCRIBE = Script("ledger", "weigh", "describe")
RENAME = Script("rename")
SHARE = Script("share")
WATCH = Script("tell", "watchers", "watch")
LEAVE = Script("tell", "leave")
POST = Script("tell", "post")
COLLECT = Script("collect")
TOUCH = Script("ledger", "touch")
SINCE = Script("calls", "since")
DELETE = Script("tell", "ledger", "weigh", "delete")
RENEW = Script("renew")
START = Script("start")
GO_ON = Script("go_on")
KEEP_IMAGE = Script("ledger", "weigh", "keep_image")
ADMIT = Script("ledger", "admit")
CHARGE = Script("ledger", "charge")
PUT = Script("put")
ENROLL = Script("enroll")
COMPACT = Script("compact")
SCHEDULE = Script("schedule")
TAKE_DUE = Script("take_due")
SETTLE_DUE = Script("settle_due")
SCRIPTS = (
    *(ACCEPT, APPEND, FINISH, REMOVE, WITHDRAW, DELETE),
    *(BRANCH, ACTIVATE, NOTE, COUNT_NOTE, DESCRIBE, RENAME, SHARE, SINCE, RENEW, START, GO_ON),
    *(WATCH, LEAVE, POST, COLLECT, TOUCH, KEEP_IMAGE, ADMIT, CHARGE, PUT, ENROLL),
    *(COMPACT, SCHEDULE, TAKE_DUE, SETTLE_DUE),
)


async def run_script(
    client: Redis, script: Script, keys: Sequence[str], args: Sequence[str | bytes | int]
) -> Any:
    """Run a script by its hash; load it first if the server does not know it.

    Raises StoreDown.
    """
    with store_errors():
        try:
            return await client.evalsha(script.sha, len(keys), *keys, *args)
        except errors.NoScriptError:
            return await client.eval(script.source, len(keys), *keys, *args)


async def pipelined(client: Redis, queue: Callable[[Pipeline], None]) -> list[Any]:
    """Send what is queued, for any slots of a cluster, in one round trip. Each command must be harmless when repeated.

    Raises StoreDown.
    """
    with store_errors():
        try:
            return await _queued(client, queue).execute()
        except errors.NoScriptError:
            await load_scripts(client)
            return await _queued(client, queue).execute()


def _queued(client: Redis, queue: Callable[[Pipeline], None]) -> Pipeline:
    pipe = client.pipeline(transaction=False)
    queue(pipe)
    return pipe


def queue_script(
    pipe: Pipeline, script: Script, keys: Sequence[str], args: Sequence[str | bytes | int]
) -> None:
    """Add a script to a pipeline, by its hash. A cluster's pipeline has no `evalsha`, but executes the command."""
    pipe.execute_command("EVALSHA", script.sha, len(keys), *keys, *args)


async def load_scripts(client: Redis) -> None:
    """Load every script into the server, or all masters of a cluster, so that pipelines can use hashes. Raises StoreDown."""
    with store_errors():
        for script in SCRIPTS:
            await client.script_load(script.source)
