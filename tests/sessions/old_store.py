"""What version 0.1.0 left in a store: written by that version itself, and killed while a reply was running.

A person (`jwt:ann`) with a laptop (`default`, `trip` with a branch, `cut` with a running turn), a phone (`default`), a
Realtime session without a client id (`call`), and an application's user (`key:shop`, alice).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from sessions.records import Client, Owner
from sessions.store.history.keys import now_ms

ROWS = Path(__file__).parent / "data" / "store-0.1.0.json"

ANN = Owner("jwt:ann", "")
ALICE = Owner("key:shop", "alice")
LAPTOP, PHONE, CALL = (Client("jwt:ann", name) for name in ("laptop", "phone", "/openai/call"))


async def lay_out(store: Redis) -> None:
    """Writes the rows as if that had been a minute ago; nothing else is in the store then."""
    old = json.loads(ROWS.read_text())
    later = now_ms() - 60_000 - old["at_ms"]
    for command, name, *parts in old["commands"]:
        await store.execute_command(command, name, *(_moved(parts, later) if command == "ZADD" else parts))


def _moved(parts: list[Any], later: int) -> list[Any]:
    return [part + later if isinstance(part, int) else part for part in parts]
