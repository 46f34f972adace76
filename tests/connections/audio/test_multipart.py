"""A form is read in memory, within bounds."""

from __future__ import annotations

import encodings
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import FormData, Headers, UploadFile

from connections.api.audio import MAX_FIELDS, MAX_PARAMETERS, MAX_VALUE_BYTES, parse_form
from connections.api.requests import Problem

pytestmark = pytest.mark.asyncio
TYPE = "multipart/form-data; boundary=line"


def part(name: str, content: bytes, more: str = "") -> bytes:
    head = f'--line\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'
    return head.encode() + content + b"\r\n"


FILE, END = '; filename="a b.wav"\r\nContent-Type: audio/wav', b"--line--\r\n"


async def parsed(body: bytes, kind: str = TYPE) -> FormData:
    return await parse_form(body, Headers({"content-type": kind}))


@given(st.binary(max_size=200_000) | st.just(b"\r\n--\0line"))
async def test_a_files_bytes_come_through_as_they_are(content: bytes) -> None:
    if b"--line" in content:
        return
    form = await parsed(part("model", b"m") + part("file", content, FILE) + END)
    file = form["file"]
    assert isinstance(file, UploadFile)
    received = (form["model"], file.filename, file.content_type, await file.read())
    assert received == ("m", "a b.wav", "audio/wav", content)
    await form.close()


@pytest.mark.parametrize(
    ("body", "kind", "why"),
    [
        (b"", TYPE, "has no end"),
        (part("file", b"x", FILE), TYPE, "has no end"),
        (b"--line\r\n" + b"x" * 10_000 + END, TYPE, "malformed"),
        (b"--line\r\nNothing: here\r\n\r\n\r\n" + END, TYPE, "malformed"),
        (part("a", b"x" * (MAX_VALUE_BYTES + 1)) + END, TYPE, "maximum size"),
        (part("a", b"") * (MAX_FIELDS + 1) + END, TYPE, "Too many fields"),
        (part("a", b"", FILE) * 2 + END, TYPE, "Too many files"),
        (b"{}", "application/json", "multipart/form-data"),
        (END, "multipart/form-data", "Missing boundary"),
        (END, 'multipart/form-data; boundary="a;b"', "Missing boundary"),
        (END, "", "multipart/form-data"),
        (END, TYPE + ";" * (MAX_PARAMETERS + 1), "multipart/form-data"),
    ],
)
async def test_what_is_no_form_is_refused(body: bytes, kind: str, why: str) -> None:
    with pytest.raises(Problem, match=why):
        await parsed(body, kind)


@pytest.mark.parametrize("charset", ["punycode", "undefined", "utf-16", "made-up" * 1000])
async def test_the_sender_does_not_choose_the_codec_of_fields(charset: str) -> None:
    """Some take long, some fail, and Python remembers each unknown name for good."""
    known = set(encodings._cache)  # type: ignore[attr-defined]
    form = await parsed(part("model", "ä-é".encode()) + END, f"{TYPE}; charset={charset}")
    assert form["model"] == "ä-é"
    assert set(encodings._cache) - known <= {"utf_8"}  # type: ignore[attr-defined]
    await form.close()


@given(st.binary(max_size=300), st.text(st.characters(max_codepoint=255), max_size=60))
async def test_no_body_brings_anything_but_a_refusal(noise: bytes, kind: str) -> None:
    for body in (noise, part("file", b"x")[: len(noise)] + noise, b"--line\r\n" + noise + b"\r\n--line--"):
        for reported in (TYPE, kind):
            with suppress(Problem):
                await (await parsed(body, reported)).close()
