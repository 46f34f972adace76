"""The endpoints for sound and for vectors: recordings and texts that are long, forms that are odd, answers that nobody reads."""

from __future__ import annotations

import asyncio
import struct
from functools import cache
from random import Random

from tests.attack.attack import KB, MB, SMALL_BUFFER, Cost, Family, TargetKind, beats
from tests.attack.client import Attacker
from tests.attack.families.minimal_requests import SPEECH, a_spoken_sentence, minimal_request

family = Family(ground=TargetKind.OPEN)
TRANSCRIPTIONS, EMBEDDINGS = "/v1/audio/transcriptions", "/v1/embeddings"
EARS = "pocketsphinx"
MINUTES = 9
RATE = 8_000
SENTENCE = "The quick brown fox jumps over the lazy dog. "
LONG_TEXT = (SENTENCE * 100)[:4_000]
TEXTS = ["a" * (30 * KB)] * 128
HEAD = "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n"
FORM = "multipart/form-data; boundary=b"


def _part(name: str, content: bytes, more: str = "") -> bytes:
    head = f'--b\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'
    return head.encode() + content + b"\r\n"


def _form(*parts: bytes, kind: str = FORM) -> bytes:
    body = b"".join((*parts, b"--b--\r\n"))
    return HEAD.format(path=TRANSCRIPTIONS, kind=kind, length=len(body)).encode() + body


@cache
def _recording() -> bytes:
    """Minutes of noise, as loud as speech."""
    points = Random(0).randbytes(2 * RATE * 60) * MINUTES
    form = struct.pack("<IHHIIHH", 16, 1, 1, RATE, 2 * RATE, 2, 16)
    wav = b"RIFF" + struct.pack("<I", 36 + len(points)) + b"WAVEfmt " + form
    wav += b"data" + struct.pack("<I", len(points)) + points
    return _form(_part("model", EARS.encode()), _part("file", wav, '; filename="a.wav"'))


@cache
def _odd_forms() -> tuple[bytes, ...]:
    costly = f'; a="{";" * 3_900}'
    return (
        _form(*[_part("a", b"x")] * 30_000),
        _form(*[_part("file", b"x", costly)] * 30),
        _form(_part("file", b"\r\n--" * MB)),
        _form(_part("file", b"\r\n--" * MB), kind=f'multipart/form-data; boundary="{"-" * 70}"'),
        _form(_part("file", b"x"), kind=f'{FORM}; a="{";" * 60_000}'),
        _form(_part("model", EARS.encode()), _part("file", b"RIFF" * 10_000)),
    )


family.ask(
    "long-recordings",
    "Has nine minutes of noise recognized, repeatedly.",
    _recording,
    sockets=2,
    cost=Cost.BODY,
)


@family.attack(sockets=1, cost=Cost.BODY, warm=_recording)
async def left_recordings(attacker: Attacker) -> None:
    """Sends nine minutes of sound and leaves."""
    async for _ in beats(2):
        await (await attacker.connect()).write(_recording())
        attacker.close()


@family.attack(sockets=1, cost=Cost.BODY, warm=_odd_forms)
async def odd_forms(attacker: Attacker) -> None:
    """Sends forms with 30,000 fields, long headers and near-boundaries."""
    for form in _odd_forms():
        await attacker.ask(await attacker.connect(), form)
        attacker.close()


@family.attack(sockets=8, prepare=a_spoken_sentence)
async def unread_speech(attacker: Attacker) -> None:
    """Has 4,000 characters spoken, and reads no sound."""
    one = await attacker.connect(receive_buffer=SMALL_BUFFER)
    await one.write(minimal_request(SPEECH, key=f"{attacker.client_id}-{attacker.place}", input=LONG_TEXT))
    await asyncio.Event().wait()


@family.attack(sockets=4, prepare=a_spoken_sentence)
async def left_speech(attacker: Attacker) -> None:
    """Has 4,000 characters spoken and leaves."""
    async for _ in beats(10):
        await (await attacker.connect()).write(
            minimal_request(SPEECH, key=f"{attacker.client_id}-{attacker.place}", input=LONG_TEXT)
        )
        attacker.close()


@family.attack(sockets=2, cost=Cost.BODY)
async def many_texts(attacker: Attacker) -> None:
    """Asks for embeddings of 128 texts of 4 MiB, and of 9,000 empty ones."""
    one = await attacker.connect()
    await attacker.ask(one, minimal_request(EMBEDDINGS, key=attacker.client_id, input=TEXTS))
    await attacker.ask(one, minimal_request(EMBEDDINGS, key=attacker.client_id, input=[""] * 9_000))
