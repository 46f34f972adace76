"""What other protocols' endpoints keep: responses of the background, long chains of them, threads that are run again, images."""

from __future__ import annotations

import json
import struct
import zlib
from functools import cache
from random import Random

from tests.attack.attack import KB, SMALL_BUFFER, Family, TargetKind, beats
from tests.attack.client import Attacker
from tests.attack.families.bodies import post
from tests.attack.families.minimal_requests import minimal_request
from tests.chaos.minimal_websocket import framed

family = Family(sockets=4)
RESPONSES, THREADS, CHAT = "/v1/responses", "/v1/ag-ui", "/v1/ai-sdk/chat"
OWNER = "attackers-chain-7b1e0c9d42"
"""One name, whose chain of responses all attackers read."""
LINKS = 40
LINK = [{"role": "user", "content": "x" * 30_000}] * 8
READ = "GET /v1/responses/{response_id}{more} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {owner}\r\n\r\n"
SHOWN = ("", "/input_items?limit=1", "?include=all")
IMAGE = 200 * KB
IN_BACKGROUND = {"background": True, "stream": False, "max_output_tokens": 20}
UNLISTED = [
    {"type": "mcp", "server_label": f"s{number}", "server_url": f"http://127.0.0.1:1/{number}"}
    for number in range(100)
]


def _read(attacker: Attacker, more: str) -> bytes:
    return READ.format(response_id=attacker.job.note, more=more, owner=OWNER).encode()


def _continue_or_read(attacker: Attacker, number: int) -> bytes:
    if number % 2 == 0:
        return _read(attacker, SHOWN[1])
    return minimal_request(RESPONSES, key=OWNER, previous_response_id=attacker.job.note, stream=False)


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


family.ask_often(
    "background-floods", "Starts background responses.",
    lambda me, _: minimal_request(RESPONSES, key=f"sk-of-a-flooding-{me.client_id}", **IN_BACKGROUND), per_s=50,
)  # fmt: skip
family.ask_often(
    "read-chains", "Reads the end of a chain of responses of 9 MB.",
    lambda me, number: _read(me, SHOWN[number % 2 * 2]), per_s=20, prepare=a_chain,
)  # fmt: skip
family.ask_often(
    "long-chains",
    "Continues that chain, which fits in no window.",
    _continue_or_read,
    per_s=20,
    prepare=a_chain,
)


@family.attack(ground=TargetKind.OPEN)
async def rerun_threads(attacker: Attacker) -> None:
    """Runs one stored thread from four sockets at once."""
    one = await attacker.connect()
    async for _ in beats(20):
        props = {"server_tools": ["*"], "max_tokens": 1}
        fields = {"threadId": attacker.client_id, "forwardedProps": props}
        request = minimal_request(THREADS, key=f"sk-of-a-thread-{attacker.client_id}", **fields)
        await attacker.ask(one, request)
        attacker.close()  # its answer has no length: the socket is left for a new one
        one = await attacker.connect()


family.ask_often(
    "unlisted-servers", "Asks for responses with the tools of 100 unlisted servers.",
    lambda me, _: minimal_request(RESPONSES, key=me.client_id, tools=UNLISTED, stream=False),
    per_s=20, ground=TargetKind.OPEN,
)  # fmt: skip


@family.attack()
async def colliding_ids(attacker: Attacker) -> None:
    """Sends one message id with changing content."""
    one = await attacker.connect()
    await one.handshake(path=f"{CHAT}?client_id=colliding")

    def sent(number: int) -> bytes:
        message = {"id": "m", "role": "user", "parts": [{"type": "text", "text": f"Number {number}."}]}
        frame = {"type": "send", "requestId": "r", "id": "chat", "messages": [message]}
        return framed(json.dumps(frame).encode())

    await attacker.flood(one, sent, per_s=40)


@family.attack(sockets=8)
async def chat_lanes(attacker: Attacker) -> None:
    """Starts AI SDK chats in lanes of one socket, and reads none."""
    one = await attacker.connect(receive_buffer=SMALL_BUFFER)
    await one.handshake(path=f"{CHAT}?client_id=lanes-{attacker.number}-{attacker.place}")
    async for number in beats(50):
        message = {"id": f"m{number}", "role": "user", "parts": [{"type": "text", "text": "Hello."}]}
        sent = {"type": "send", "requestId": f"r{number}", "id": f"chat-{number}", "messages": [message]}
        await one.write(framed(json.dumps(sent).encode()))


def _upload(attacker: Attacker, number: int) -> bytes:
    path = f"/v1/attachments?client_id={attacker.client_id}-{number % 4}"
    return post(path, _image(number + 1_000 * attacker.place))


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


family.ask_often("stored-images", "Uploads unused images of 200 KB.", _upload, per_s=20)
