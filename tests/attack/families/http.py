"""HTTP requests: bodies that are long, odd or slow, at every endpoint in turn; schemas and tools; recordings, texts and images."""

from __future__ import annotations

import asyncio
import json
import struct
import uuid
from functools import cache
from random import Random
from typing import Any

from tests.attack.attack import Cost, Family, TargetKind, connect_unread
from tests.attack.client import KB, MB, Attacker
from tests.attack.requests import (
    BODIES,
    COMPLETIONS,
    MESSAGE,
    RESPONSES,
    SPEECH,
    STREAMED,
    a_spoken_sentence,
    completion,
    frame,
    get,
    head,
    minimal_request,
    png,
    post,
)

family = Family(sockets=2, ground=TargetKind.MODEL, cost=Cost.BODY)
ON_SOCKETS: dict[str, Any] = {"ground": TargetKind.SCRIPTED, "cost": Cost.SOCKET}
MOST = 4 * MB - KB
"""About as long as a body may be."""


@cache
def _long() -> list[bytes]:
    past = {"role": "assistant", "content": "once upon a time " * (MOST // 17)}
    return [post(COMPLETIONS, completion(messages=[past, MESSAGE]))]


@cache
def _metadata() -> list[bytes]:
    return [post(COMPLETIONS, completion(metadata={f"k{n}": "v" * 500 for n in range(MOST // 520)}))]


@cache
def _many_messages() -> list[bytes]:
    return [post(COMPLETIONS, completion(messages=[{"role": "user", "content": "a"}] * (MOST // 35)))]


@cache
def _many_blocks() -> list[bytes]:
    blocks = 9_900  # about as many as a body may have
    text = {"type": "text", "text": "a" * (MOST // blocks - 30)}
    message = MESSAGE | {"content": [text] * blocks}
    return [minimal_request("/v1/messages", messages=[message], max_tokens=1, stream=False)]


@cache
def _chunked() -> list[bytes]:
    body = completion(metadata={"a": "v" * 100_000})
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    return [head(COMPLETIONS, Transfer_Encoding="chunked") + chunks + b"0\r\n\r\n"]


family.ask("long-bodies", "Asks for completions after 4 MiB of text.", _long, sockets=3)
family.ask(
    "huge-metadata", "Asks for a completion with 4 MiB of metadata.", _metadata, sockets=3, expect="HTTP 200"
)
family.ask("many-messages", "Asks for a completion after 119,000 messages.", _many_messages, sockets=3)
family.ask(
    "many-blocks", "Asks for a message of 9,900 text blocks, 4 MiB in all.", _many_blocks, sockets=3, expect="HTTP 400"
)  # fmt: skip


family.ask("chunked-bodies", "Sends a body of 100 KB in chunks of one byte.", _chunked)


@family.attack(sockets=50, **ON_SOCKETS)
async def pipelined_requests(attacker: Attacker) -> None:
    """Pipelines small requests, 1,000 a second."""
    one, requests = await attacker.connect(), get("/healthz") * 100
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(one.discard())
        await attacker.send_paced(one, lambda _: requests, per_s=10)


# Every endpoint in turn.
DEEP = b"[" * 5_000 + b"]" * 5_000
"""Short enough to be decoded as it is, in a field that no endpoint knows."""
OBJECTS = b"[" + b"{}," * 60_000 + b"{}]"
KEYS = b"{" + b",".join(b'"k%d":0' % number for number in range(20_000)) + b"}"
QUOTES = b'"' + b"\\\\" * 100_000 + b'"'
TRANSCRIPTIONS = "/v1/audio/transcriptions"
TRICKLED = (TRANSCRIPTIONS, "/v1/attachments?client_id=trickler", *BODIES)


def _odd(path: str) -> list[bytes]:
    """One honest body with what is odd in a field beside it, and bodies that are odd all over."""
    honest = json.dumps(BODIES[path]).encode()[:-1]
    within = [honest + b',"unknown":' + odd + b"}" for odd in (DEEP, DEEP[:5_000], OBJECTS, KEYS, QUOTES)]
    fields = [honest + b',"%b":' % name.encode() + DEEP + b"}" for name in BODIES[path]]
    return [*within, *fields, DEEP, OBJECTS, KEYS, b"\xff" * 20_000, b'"\\ud800"']


@cache
def _of_one_role() -> list[bytes]:
    replies = [{"id": "m", "role": "assistant", "content": "x" * 380}] * 9_000
    inputs = [{"role": "user", "content": "x" * 1_900}] * 2_000
    return [
        minimal_request("/v1/ag-ui", messages=[*replies, MESSAGE]),
        minimal_request(RESPONSES, key="many-sayings", input=inputs, max_output_tokens=1, stream=False),
    ]


def _stream(attacker: Attacker, _: int) -> bytes:
    return minimal_request([*STREAMED][attacker.place % len(STREAMED)], key=attacker.socket_id)


family.unread(
    "unread-streams", "Streams a long reply from each endpoint in turn, and reads nothing.",
    _stream, times=1, opens=connect_unread, sockets=12, **ON_SOCKETS,
)  # fmt: skip


@family.attack(ground=TargetKind.OPEN, prepare=a_spoken_sentence, expect="HTTP 400")
async def odd_shapes(attacker: Attacker) -> None:
    """Sends every endpoint JSON that is too deep, too wide or invalid."""
    for number in range(len(BODIES)):
        path = [*BODIES][(number + attacker.place) % len(BODIES)]
        for body in _odd(path):
            await attacker.ask(post(path, body, key=f"{attacker.socket_id}-{path}"))
            attacker.close()


family.ask(
    "many-sayings", "Asks for replies to 4 MiB of consecutive messages of one role.",
    _of_one_role, ground=TargetKind.SCRIPTED, expect="HTTP 200",
)  # fmt: skip


@family.attack(sockets=26, ground=TargetKind.OPEN)
async def trickled_everywhere(attacker: Attacker) -> None:
    """Announces a large body to every endpoint, and trickles it."""
    path = TRICKLED[attacker.place % len(TRICKLED)]
    kind = FORM if path == TRANSCRIPTIONS else "application/json"
    one = await attacker.connect()
    await one.write(head(path, Content_Type=kind, Content_Length=str(3 * MB)) + b" " * 100 * KB)
    await attacker.trickle(one, b" " * MB, per_s=1)


# Schemas and tools.
RESULT = 10 * MB
COSTLY: tuple[dict[str, Any], ...] = (
    {
        "allOf": [
            {"anyOf": [{"title": f"{m}", "properties": {f"p{m}": {"type": "string"}}} for m in range(4)]}
            for _ in range(8)
        ]
    },
    {"type": "integer", "multipleOf": 99_991},
    {"allOf": [{"type": "string", "pattern": f"^.*{n}.*x.*{7 * n}.*$"} for n in range(20)]},
    {"type": "string", "pattern": "(" * 3_000 + "a" + ")" * 3_000},
    {"properties": {f"p{n}": {} for n in range(5_000)}},
    {"allOf": [{"$ref": "#"}, {"type": "object"}]},
)
"""Each takes what a schema may take, or would take far more: the first has four to the power of eight choices."""


def _with_schema(schema: dict[str, Any]) -> bytes:
    named = {"name": "s", "schema": schema, "strict": True}
    return post(COMPLETIONS, completion(response_format={"type": "json_schema", "json_schema": named}))


@cache
def _huge_schema() -> list[bytes]:
    return [_with_schema({"description": "x" * 5 * MB})]


def _costly_schemas() -> list[bytes]:
    return [_with_schema({**schema, "title": uuid.uuid4().hex}) for schema in COSTLY]


@cache
def _many_tools() -> list[bytes]:
    tools = [{"type": "function", "function": {"name": f"t{n}"}} for n in range(10_000)]
    return [post(COMPLETIONS, completion(tools=tools))]


@cache
def _huge_result_frame() -> bytes:
    return frame("tool_result", call_id="call_1", content="x" * RESULT)


family.ask("huge-schemas", "Asks for a reply that follows a schema of 5 MB.", _huge_schema, expect="HTTP 413")
family.ask(
    "costly-schemas", "Asks for replies that follow schemas too complex to compile.", _costly_schemas, expect="HTTP 400"
)  # fmt: skip
family.ask("many-tools", "Asks for a reply that may call 10,000 tools.", _many_tools, expect="HTTP 400")
family.flood(
    "huge-result-frames", "Sends a tool result of 10 MB in one frame.",
    lambda *_: _huge_result_frame(), times=1, per_s=1, sockets=4, expect="closed 1009", **ON_SOCKETS,
)  # fmt: skip


# Recordings, texts and images.
OPEN: dict[str, Any] = {"ground": TargetKind.OPEN}
EARS = "pocketsphinx"
RATE = 8_000
LONG_TEXT = ("The quick brown fox jumps over the lazy dog. " * 100)[:4_000]
FORM = "multipart/form-data; boundary=b"


def _part(name: str, content: bytes, more: str = "") -> bytes:
    before = f'--b\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'
    return before.encode() + content + b"\r\n"


def _form(*parts: bytes, kind: str = FORM) -> bytes:
    body = b"".join((*parts, b"--b--\r\n"))
    return head(TRANSCRIPTIONS, Content_Type=kind, Content_Length=str(len(body))) + body


@cache
def _recording() -> list[bytes]:
    """Nine minutes of noise, as loud as speech."""
    points = Random(0).randbytes(2 * RATE * 60) * 9
    form = struct.pack("<IHHIIHH", 16, 1, 1, RATE, 2 * RATE, 2, 16)
    wav = b"RIFF" + struct.pack("<I", 36 + len(points)) + b"WAVEfmt " + form
    wav += b"data" + struct.pack("<I", len(points)) + points
    return [_form(_part("model", EARS.encode()), _part("file", wav, '; filename="a.wav"'))]


@cache
def _odd_forms() -> list[bytes]:
    costly = f'; a="{";" * 3_900}'
    return [
        _form(*[_part("a", b"x")] * 30_000),
        _form(*[_part("file", b"x", costly)] * 30),
        _form(_part("file", b"\r\n--" * MB)),
        _form(_part("file", b"\r\n--" * MB), kind=f'multipart/form-data; boundary="{"-" * 70}"'),
        _form(_part("file", b"x"), kind=f'{FORM}; a="{";" * 60_000}'),
        _form(_part("model", EARS.encode()), _part("file", b"RIFF" * 10_000)),
    ]


def _speech(attacker: Attacker, _: int = 0) -> bytes:
    return minimal_request(SPEECH, key=attacker.socket_id, input=LONG_TEXT)


async def _send_recording(attacker: Attacker) -> None:
    await (await attacker.connect()).write(_recording()[0])


family.ask("long-recordings", "Has nine minutes of noise recognized, repeatedly.", _recording, **OPEN)
family.visits(
    "left-recordings", "Sends nine minutes of sound and leaves.",
    _send_recording, per_s=2, sockets=1, warm=_recording, **OPEN,
)  # fmt: skip
family.ask(
    "odd-forms", "Sends forms with 30,000 fields, long headers and near-boundaries.",
    _odd_forms, sockets=1, expect="HTTP 400", **OPEN,
)  # fmt: skip
family.unread(
    "unread-speech", "Has 4,000 characters spoken, and reads no sound.",
    _speech, times=1, opens=connect_unread, sockets=8, prepare=a_spoken_sentence, **OPEN | {"cost": Cost.SOCKET},
)  # fmt: skip


@family.attack(expect="HTTP 400", **OPEN)
async def many_texts(attacker: Attacker) -> None:
    """Asks for embeddings of 128 texts of 4 MiB, and of 9,000 empty ones."""
    one = await attacker.connect()
    for texts in (["a" * (30 * KB)] * 128, [""] * 9_000):
        await attacker.ask(minimal_request("/v1/embeddings", key=attacker.client_id, input=texts), one)


@cache
def _noise() -> bytes:
    return Random(0).randbytes(200 * KB)


def _upload(attacker: Attacker, number: int) -> bytes:
    points = Random(number + 1_000 * attacker.place).randbytes(64) + _noise()
    return post(f"/v1/attachments?client_id={attacker.client_id}-{number % 4}", png(points))


family.ask_often(
    "stored-images", "Uploads unused images of 200 KB.", _upload, per_s=20, sockets=4, expect="HTTP 200", **ON_SOCKETS
)  # fmt: skip
