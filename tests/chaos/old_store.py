"""The store of version 0.1.0, killed in the middle of a reply, under today's service.

Its users connect with their devices: all their data is there, and each conversation goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

from redis.asyncio import Redis

from connections.authentication.api_keys import digest_of, new_key
from tests.bench.engine.findings import Target
from tests.chaos.report import Finding, Part
from tests.chaos.server_log import unhandled
from tests.chaos.stage import Stage
from tests.chaos.store_server import store_server
from tests.chaos.thin_socket import ThinSocket
from tests.server_process import serving
from tests.sessions.old_store import LAPTOP, PHONE, lay_out
from tests.signing import SECRET, token

KEPT: dict[str, dict[str, list[str]]] = {
    "ann": {
        "Drawing": ["How do I draw a wood?", "Begin with the trees.", "What do I need?", "Paper, a pencil, patience."],
        "And the weather?": ["And the weather in May?", "Sun."],
        "Tell me a story.": ["Tell me a story."],
        "How do I get to Vienna?": ["How do I get to Vienna?", "Take the night train."],
    },
    "alice": {"Hello.": ["Hello.", "Hello, Alice."]},
}  # fmt: skip
"""Each user's messages by conversation title; an interrupted reply is whatever was written of it."""
NONE = Target(0.0, at_most=True)
LIMIT_S = 30.0
NEW = "And now?"


def measure(stage: Stage) -> Sequence[Finding]:
    """Load the store, start the service on it, and connect its users."""
    with store_server(stage.folder / "store") as store:
        asyncio.run(_lay_out(store.port))
        key = new_key()
        environ = {
            "MIDSTREAM_REDIS_URL": store.url,
            "MIDSTREAM_JWT_SECRET": SECRET,
            "MIDSTREAM_API_KEYS": f"shop:{digest_of(key)}",
            "MIDSTREAM_LOG_LEVEL": "warning",
        }
        with serving(stage.folder, environ) as server:
            found = asyncio.run(_come(server.port, key))
            left = asyncio.run(_left(store.port))
        errors = unhandled(server.log)
    return tuple(_findings(found, left, errors))


def _findings(found: dict[str, list[str]], left: list[str], errors: list[str]) -> Iterator[Finding]:
    total = sum(len(texts) for kept in KEPT.values() for texts in kept.values())
    label = "a store of 0.1.0"
    for what, wrong in {**found, "names that nobody has any more": left, "errors in the log": errors}.items():
        yield Finding(
            part=Part.OLD_STORE,
            label=f"{label}: {what}",
            value=float(len(wrong)),
            readings={"messages": float(total)} if what == "missing" else {},
            target=NONE,
            note="; ".join(wrong[:3]),
        )


async def _lay_out(port: int) -> None:
    async with Redis(port=port) as client:
        await lay_out(client)


async def _left(port: int) -> list[str]:
    """Return what is still stored under the names of devices, whose conversations now belong to the person."""
    async with Redis(port=port) as client:
        names = [await client.keys(f"ms:*{{{device}*") for device in (LAPTOP, PHONE)]
    return [name.decode() for some in names for name in some if b"seats" not in name]


async def _come(port: int, key: str) -> dict[str, list[str]]:
    """Connect each device; the person's last one reads everything. Return the faults."""
    missing, stuck = list[str](), list[str]()
    async with asyncio.timeout(LIMIT_S), AsyncExitStack() as sockets:
        shown = {"laptop": token(), "phone": token(), "alice": key}
        devices = {name: await _device(port, name, token) for name, token in shown.items()}
        for one in devices.values():
            sockets.callback(one.close)
        people = {"ann": devices["phone"], "alice": devices["alice"]}
        for name, one in people.items():
            listed = (await _ask(one, type="conversations"))["conversations"]
            ids = {row["title"]: row["conversation_id"] for row in listed}
            for title, texts in KEPT[name].items():
                if title not in ids:
                    missing.append(f"{name}: {title}")
                    continue
                told = await _told(one, ids[title])
                missing += [
                    f"{name}: {text}" for text in texts if text not in [row["content"] for row in told]
                ]
                stuck += [row["turn_id"] for row in told if row["status"] == "running"]
                if not await _goes_on(one, ids[title], len(told)):
                    stuck.append(f"{name}: {title}")
    return {"missing": missing, "without an end, or can't go on": stuck}


async def _device(port: int, client_id: str, shown: str) -> ThinSocket:
    one = await ThinSocket.connect(("127.0.0.1", port))
    await one.greet(client_id=client_id, token=shown)
    return one


async def _told(one: ThinSocket, conversation_id: str) -> list[dict[str, Any]]:
    page = await _ask(one, type="history", conversation_id=conversation_id)
    messages: list[dict[str, Any]] = page["messages"]
    return messages


async def _goes_on(one: ThinSocket, conversation_id: str, before: int) -> bool:
    """Return whether a message gets its reply, and both are in the history."""
    message = {"conversation_id": conversation_id, "client_msg_id": "new", "content": NEW}
    await one.put(type="send", **message, params={"max_new_tokens": 4})
    while (await one.get())["type"] != "done":
        pass
    told = await _told(one, conversation_id)
    return len(told) == before + 2 and told[-2]["content"] == NEW


async def _ask(one: ThinSocket, **frame: Any) -> dict[str, Any]:
    """Send a frame; return its answer."""
    await one.put(**frame, ref="asked")
    while (answer := await one.get()).get("ref") != "asked":
        pass
    return answer
