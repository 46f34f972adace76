"""HTTP requests: long bodies, odd bodies, slow bodies, and small ones by the thousand."""

from __future__ import annotations

import asyncio
import json
from functools import cache

from tests.attack.attack import MB, Cost, Family, TargetKind, beats
from tests.attack.client import Attacker

family = Family(sockets=2, ground=TargetKind.MODEL, cost=Cost.BODY)
MOST = 4 * MB - 1024
"""About as long as a body may be."""
SMALL = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 100
MESSAGE = {"role": "user", "content": "Hello."}


def post(path: str, body: bytes, *, key: str | None = None) -> bytes:
    """Return a whole request."""
    authorization = f"Authorization: Bearer {key}\r\n" if key else ""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{authorization}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _chat(**fields: object) -> bytes:
    return json.dumps({"model": "midstream-demo", "messages": [MESSAGE], "max_tokens": 1} | fields).encode()


@cache
def _long() -> bytes:
    past = {"role": "assistant", "content": "once upon a time " * (MOST // 17)}
    return post("/v1/chat/completions", _chat(messages=[past, MESSAGE]))


@cache
def _deep() -> bytes:
    deep = b"[" * (MOST // 2) + b"]" * (MOST // 2)
    return post("/v1/chat/completions", _chat()[:-1] + b', "metadata": ' + deep + b"}")


@cache
def _many_keys() -> bytes:
    return post("/v1/chat/completions", _chat(**{f"k{number}": 0 for number in range(MOST // 14)}))


@cache
def _metadata() -> bytes:
    return post("/v1/chat/completions", _chat(metadata={f"k{n}": "v" * 500 for n in range(MOST // 520)}))


@cache
def _many_messages() -> bytes:
    return post("/v1/chat/completions", _chat(messages=[{"role": "user", "content": "a"}] * (MOST // 35)))


@cache
def _chunked() -> bytes:
    body = _chat(metadata={"a": "v" * 100_000})
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head.encode() + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"


family.ask("long-bodies", "Asks for completions after 4 MiB of text.", _long, sockets=3)
family.ask("deep-bodies", "Asks for a completion with two million levels of nesting.", _deep)
family.ask("many-keys", "Asks for a completion with 300,000 fields.", _many_keys)
family.ask("huge-metadata", "Asks for a completion with 4 MiB of metadata.", _metadata, sockets=3)
family.ask("many-messages", "Asks for a completion after 119,000 messages.", _many_messages, sockets=3)


@family.attack(sockets=4, warm=_metadata)
async def trickled_bodies(attacker: Attacker) -> None:
    """Sends a body of 4 MiB, its last bytes at one a second."""
    one = await attacker.connect()
    whole = _metadata()
    await one.write(whole[:-30])
    async with asyncio.TaskGroup() as tasks:
        hearing = tasks.create_task(attacker.receive(one))
        async for number in beats(1):
            if hearing.done():
                return
            await one.write(whole[number - 30 :][:1])


family.ask("chunked-bodies", "Sends a body of 100 KB in chunks of one byte.", _chunked)


@family.attack(sockets=50, ground=TargetKind.SCRIPTED, cost=Cost.SOCKET)
async def pipelined_requests(attacker: Attacker) -> None:
    """Pipelines small requests, 1,000 a second."""
    one = await attacker.connect()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(one.discard())
        async for _ in beats(10):
            await one.write(SMALL)
