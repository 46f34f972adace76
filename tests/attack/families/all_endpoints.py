"""What is done at every HTTP endpoint in turn: streams that nobody reads, bodies that come too slowly, JSON of odd shapes."""

from __future__ import annotations

import asyncio
import json
from functools import cache

from tests.attack.attack import KB, MB, SMALL_BUFFER, Cost, Family, TargetKind, beats
from tests.attack.client import Attacker
from tests.attack.families.bodies import MESSAGE, post
from tests.attack.families.minimal_requests import BODIES, STREAMED, a_spoken_sentence, minimal_request

family = Family()
DEEP = b"[" * 5_000 + b"]" * 5_000
"""Short enough to be decoded as it is, in a field that no endpoint knows."""
OBJECTS = b"[" + b"{}," * 60_000 + b"{}]"
KEYS = b"{" + b",".join(b'"k%d":0' % number for number in range(20_000)) + b"}"
QUOTES = b'"' + b"\\\\" * 100_000 + b'"'
TRICKLED = ("/v1/audio/transcriptions", "/v1/attachments?client_id=trickler", *BODIES)
HEAD = "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n"


def _odd(path: str) -> list[bytes]:
    """One honest body with what is odd in a field beside it, and bodies that are odd all over."""
    honest = json.dumps(BODIES[path]).encode()[:-1]
    within = [honest + b',"unknown":' + odd + b"}" for odd in (DEEP, DEEP[:5_000], OBJECTS, KEYS, QUOTES)]
    fields = [honest + b',"%b":' % name.encode() + DEEP + b"}" for name in BODIES[path]]
    return [*within, *fields, DEEP, OBJECTS, KEYS, b"\xff" * 20_000, b'"\\ud800"']


@cache
def _many_replies() -> bytes:
    message = {"id": "m", "role": "assistant", "content": "x" * 380}
    return minimal_request("/v1/ag-ui", messages=[message] * 9_000 + [MESSAGE])


@cache
def _many_inputs() -> bytes:
    message = {"role": "user", "content": "x" * 1_900}
    return minimal_request(
        "/v1/responses", key="many-sayings", input=[message] * 2_000, max_output_tokens=1, stream=False
    )


def _warm() -> None:
    _many_replies()
    _many_inputs()


@family.attack(sockets=12)
async def unread_streams(attacker: Attacker) -> None:
    """Streams a long reply from each endpoint in turn, and reads nothing."""
    one = await attacker.connect(receive_buffer=SMALL_BUFFER)
    await one.write(
        minimal_request(
            [*STREAMED][attacker.place % len(STREAMED)], key=f"{attacker.client_id}-{attacker.place}"
        )
    )
    await asyncio.Event().wait()


@family.attack(sockets=2, ground=TargetKind.OPEN, cost=Cost.BODY, prepare=a_spoken_sentence)
async def odd_shapes(attacker: Attacker) -> None:
    """Sends every endpoint JSON that is too deep, too wide or invalid."""
    for number in range(len(BODIES)):
        path = [*BODIES][(number + attacker.place) % len(BODIES)]
        for body in _odd(path):
            one = await attacker.connect()
            await attacker.ask(one, post(path, body, key=f"{attacker.client_id}-{attacker.place}-{path}"))
            attacker.close()


@family.attack(sockets=2, cost=Cost.BODY, warm=_warm)
async def many_sayings(attacker: Attacker) -> None:
    """Asks for replies to 4 MiB of consecutive messages of one role."""
    for requested in (_many_replies(), _many_inputs()):
        await attacker.ask(await attacker.connect(), requested)
        attacker.close()


@family.attack(sockets=26, ground=TargetKind.OPEN, cost=Cost.BODY)
async def trickled_everywhere(attacker: Attacker) -> None:
    """Announces a large body to every endpoint, and trickles it."""
    path = TRICKLED[attacker.place % len(TRICKLED)]
    kind = "multipart/form-data; boundary=b" if "transcriptions" in path else "application/json"
    one = await attacker.connect()
    await one.write(HEAD.format(path=path, kind=kind, length=3 * MB).encode() + b" " * 100 * KB)
    async with asyncio.TaskGroup() as tasks:
        hearing = tasks.create_task(attacker.receive(one))
        async for _ in beats(1):
            if hearing.done():
                return
            await one.write(b" ")
