"""The endpoints of other protocols: sockets full of lanes, forks of what is stored, bodies of many blocks, chats that are left."""

from __future__ import annotations

import json
import uuid
from functools import cache
from typing import Any

from tests.attack.attack import SMALL_BUFFER, Cost, Family, TargetKind, beats
from tests.attack.client import Attacker, Socket
from tests.attack.families.bodies import MESSAGE, MOST, post
from tests.chaos.minimal_websocket import framed

family = Family(sockets=8)
RESPONSES, CHAT = "/v1/responses", "/v1/ai-sdk/chat"
MODEL = "midstream-demo"
BLOCKS = 9_900
"""About as many as a body may have."""
CONTENT = "x" * 20_000
KEY = "sk-Attackers0Past1Kept2Responses"
"""One name, whose stored response all attackers continue."""


def _response(**fields: object) -> dict[str, object]:
    return {"model": MODEL, "input": "Hello.", "max_output_tokens": 1} | fields


@cache
def _blocks() -> bytes:
    text = {"type": "text", "text": "a" * (MOST // BLOCKS - 30)}
    body = {"model": MODEL, "max_tokens": 1, "messages": [MESSAGE | {"content": [text] * BLOCKS}]}
    return post("/v1/messages", json.dumps(body, separators=(",", ":")).encode())


@family.attack()
async def unread_lanes(attacker: Attacker) -> None:
    """Starts responses in lanes of one socket, and reads none."""
    one = await attacker.connect(receive_buffer=SMALL_BUFFER)
    await one.handshake(path=RESPONSES)
    async for number in beats(50):
        ask = _response(
            type="response.create", stream_id=f"lane-{number}", store=False, max_output_tokens=500
        )
        await one.write(framed(json.dumps(ask).encode()))


@family.attack()
async def kept_lanes(attacker: Attacker) -> None:
    """Has responses of 20,000 characters kept in its socket's memory."""
    one = await attacker.connect()
    await one.handshake(path=RESPONSES)
    ask = _response(type="response.create", store=False, input=CONTENT)
    await attacker.flood(
        one, lambda number: framed(json.dumps(ask | {"stream_id": f"lane-{number}"}).encode()), per_s=40
    )


async def a_response(attacker: Attacker) -> str:
    """Store a response with 10 KB of instructions; return its id."""
    one = await attacker.connect()
    await one.write(_stored())
    await one.answer()
    return str((await one.body())["id"])


def _stored(**fields: Any) -> bytes:
    """Return a request under a name, to which what it stores belongs."""
    body = _response(
        instructions=CONTENT[:2_000], metadata={f"k{number}": "v" * 500 for number in range(16)}, **fields
    )
    return post(RESPONSES, json.dumps(body).encode(), key=KEY)


family.ask_often(
    "stored-forks", "Continues one stored response again and again.",
    lambda me, _: _stored(previous_response_id=me.job.note), per_s=20, sockets=4, prepare=a_response,
)  # fmt: skip
family.ask(
    "many-blocks", "Asks for a message of 9,900 text blocks, 4 MiB in all.",
    _blocks, sockets=3, ground=TargetKind.MODEL, cost=Cost.BODY,
)  # fmt: skip


@family.attack()
async def left_chats(attacker: Attacker) -> None:
    """Leaves a chat in the middle of an answer, resumes it and leaves again."""
    chat = f"left-{attacker.place}-{attacker.life}"
    parts = [{"type": "text", "text": "Hello."}]
    message = {"id": uuid.uuid4().hex, "role": "user", "parts": parts}
    body = {"id": chat, "messages": [message], "on_disconnect": "continue"}
    await _send_and_leave(attacker, post(CHAT, json.dumps(body).encode()))
    for _ in range(4):
        await _send_and_leave(
            attacker, f"GET {CHAT}/{chat}/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
        )


async def _send_and_leave(attacker: Attacker, request: bytes) -> None:
    """Sends a request, reads the head of its answer, and is gone."""
    one: Socket = await attacker.connect(receive_buffer=SMALL_BUFFER)
    await one.write(request)
    await attacker.receive(one)
    attacker.close()
