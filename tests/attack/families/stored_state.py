"""What other protocols' endpoints keep: responses of the background, long chains of them, threads that are run again, images."""

from __future__ import annotations

import json
import struct
import zlib
from functools import cache
from random import Random

from tests.attack.attack import KB, TargetKind, attack
from tests.attack.client import Attacker, Socket, beats
from tests.attack.families.bodies import post
from tests.attack.families.minimal_requests import minimal_request
from tests.chaos.minimal_websocket import framed

RESPONSES, THREADS, CHAT = "/v1/responses", "/v1/ag-ui", "/v1/ai-sdk/chat"
OWNER = "attackers-chain-7b1e0c9d42"
"""One name, whose chain of responses all attackers read."""
LINKS = 40
LINK = [{"role": "user", "content": "x" * 30_000}] * 8
READ = "GET /v1/responses/{response_id}{more} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {owner}\r\n\r\n"
SHOWN = ("", "/input_items?limit=1", "?include=all")
IMAGE = 200 * KB


async def a_chain(attacker: Attacker) -> str:
    """Responses that each follow the one before, 9 MB in all; gives the last one's id."""
    one = await attacker.connect()
    last: str | None = None
    for _ in range(LINKS):
        fields = {"input": LINK, "truncation": "auto", "max_output_tokens": 1, "stream": False}
        await one.write(minimal_request(RESPONSES, key=OWNER, previous_response_id=last, **fields))
        status, reason = await one.answer()
        response = await one.body()
        assert status == 200, f"{status} {reason}: {response}"
        last = str(response["id"])
    return str(last)


@attack(sockets=4)
async def background_floods(attacker: Attacker) -> None:
    """Starts background responses."""
    one = await attacker.connect()
    async for _ in beats(50):
        fields = {"background": True, "stream": False, "max_output_tokens": 20}
        await attacker.ask(
            one, minimal_request(RESPONSES, key=f"sk-of-a-flooding-{attacker.client_id}", **fields)
        )


@attack(sockets=4, prepare=a_chain)
async def read_chains(attacker: Attacker) -> None:
    """Reads the end of a chain of responses of 9 MB."""
    one = await attacker.connect()
    async for number in beats(20):
        more = SHOWN[number % 2 * 2]
        await attacker.ask(one, READ.format(response_id=attacker.job.note, more=more, owner=OWNER).encode())


@attack(sockets=4, prepare=a_chain)
async def long_chains(attacker: Attacker) -> None:
    """Continues that chain, which fits in no window."""
    one = await attacker.connect()
    async for number in beats(20):
        if number % 2:
            fields = {"previous_response_id": attacker.job.note, "stream": False}
            await attacker.ask(one, minimal_request(RESPONSES, key=OWNER, **fields))
        else:
            await attacker.ask(
                one, READ.format(response_id=attacker.job.note, more=SHOWN[1], owner=OWNER).encode()
            )


@attack(sockets=4, ground=TargetKind.OPEN)
async def rerun_threads(attacker: Attacker) -> None:
    """Runs one stored thread from four sockets at once."""
    one = await attacker.connect()
    async for _ in beats(20):
        props = {"server_tools": ["*"], "max_tokens": 1}
        fields = {"threadId": attacker.client_id, "forwardedProps": props}
        one = await _anew(
            attacker, one, minimal_request(THREADS, key=f"sk-of-a-thread-{attacker.client_id}", **fields)
        )


@attack(sockets=4, ground=TargetKind.OPEN)
async def unlisted_servers(attacker: Attacker) -> None:
    """Asks for responses with the tools of 100 unlisted servers."""
    tools = [
        {"type": "mcp", "server_label": f"s{number}", "server_url": f"http://127.0.0.1:1/{number}"}
        for number in range(100)
    ]
    one = await attacker.connect()
    async for _ in beats(20):
        await attacker.ask(one, minimal_request(RESPONSES, key=attacker.client_id, tools=tools, stream=False))


@attack(sockets=4)
async def colliding_ids(attacker: Attacker) -> None:
    """Sends one message id with changing content."""
    one = await attacker.connect()
    await one.handshake(path=f"{CHAT}?client_id=colliding")

    def sent(number: int) -> bytes:
        message = {"id": "m", "role": "user", "parts": [{"type": "text", "text": f"Number {number}."}]}
        frame = {"type": "send", "requestId": "r", "id": "chat", "messages": [message]}
        return framed(json.dumps(frame).encode())

    await attacker.flood(one, sent, per_s=40)


@attack(sockets=8)
async def chat_lanes(attacker: Attacker) -> None:
    """Starts AI SDK chats in lanes of one socket, and reads none."""
    one = await attacker.connect(receive_buffer=8 * KB)
    await one.handshake(path=f"{CHAT}?client_id=lanes-{attacker.number}-{attacker.place}")
    async for number in beats(50):
        message = {"id": f"m{number}", "role": "user", "parts": [{"type": "text", "text": "Hello."}]}
        sent = {"type": "send", "requestId": f"r{number}", "id": f"chat-{number}", "messages": [message]}
        await one.write(framed(json.dumps(sent).encode()))


@attack(sockets=4)
async def stored_images(attacker: Attacker) -> None:
    """Uploads unused images of 200 KB."""
    one = await attacker.connect()
    async for number in beats(20):
        path = f"/v1/attachments?client_id={attacker.client_id}-{number % 4}"
        await attacker.ask(one, post(path, _image(number + 1_000 * attacker.place)))


def _image(number: int) -> bytes:
    """A PNG whose points are noise: nothing of it is decoded here."""
    return png(Random(number).randbytes(64) + _noise())


@cache
def _noise() -> bytes:
    return Random(0).randbytes(IMAGE)


def png(points: bytes) -> bytes:
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", 512, 512, 8, 2, 0, 0, 0)),
        (b"IDAT", points),
        (b"IEND", b""),
    )
    written = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(written)


async def _anew(attacker: Attacker, one: Socket, request: bytes) -> Socket:
    """Ask by a socket whose answer has no length: it is left for a new one."""
    await attacker.ask(one, request)
    attacker.close()
    return await attacker.connect()
