"""A form is read where it lies."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connections.api.audio import MAX_FIELDS, parse_form
from connections.api.requests import Problem

TYPE = "multipart/form-data; boundary=line"


def part(name: str, content: bytes, more: str = "") -> bytes:
    head = f'--line\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'
    return head.encode() + content + b"\r\n"


END = b"--line--\r\n"


def test_fields_and_files_are_told_apart() -> None:
    file = part("file", b"\r\n--\x00lines", '; filename="a b.wav"\r\nContent-Type: audio/wav')
    form = parse_form(part("model", b"m") + part("more[]", b"1") + part("more[]", b"2") + file + END, TYPE)
    assert form.values == {"model": ["m"], "more": ["1", "2"]}
    reported = form.files["file"]
    assert (reported.name, reported.media_type, reported.content) == (
        "a b.wav",
        "audio/wav",
        b"\r\n--\x00lines",
    )


@given(st.binary())
def test_a_files_bytes_come_through_as_they_are(content: bytes) -> None:
    if b"--line" not in content:
        assert parse_form(part("file", content) + END, TYPE).files["file"].content == content


@pytest.mark.parametrize(
    ("body", "kind", "why"),
    [
        (b"", TYPE, "malformed"),
        (part("file", b"x"), TYPE, "malformed"),
        (b"--line\r\n" + b"x" * 10_000 + END, TYPE, "malformed"),
        (b"--line\r\nNothing: here\r\n\r\n\r\n" + END, TYPE, "malformed"),
        (part("a", b"x" * 70_000) + END, TYPE, "too long"),
        (part("a", b"") * (MAX_FIELDS + 1) + END, TYPE, "too many fields"),
        (b"{}", "application/json", "multipart/form-data"),
        (END, "multipart/form-data", "multipart/form-data"),
        (END, "", "multipart/form-data"),
    ],
)
def test_what_is_no_form_is_refused(body: bytes, kind: str, why: str) -> None:
    with pytest.raises(Problem, match=why):
        parse_form(body, kind)


def test_a_header_that_is_made_to_be_read_for_long_is_not_read() -> None:
    """What the library would take is minutes for these, and all others wait."""
    started = time.process_time()
    with pytest.raises(Problem, match="multipart/form-data"):
        parse_form(END, f'{TYPE}; a="{";" * 600_000}')
    with pytest.raises(Problem, match="malformed"):
        parse_form(part("file", b"x", f'; a="{";" * 3_900}') * MAX_FIELDS + END, TYPE)
    assert time.process_time() - started < 5


@given(st.binary(max_size=300), st.text(max_size=60))
def test_no_body_brings_anything_but_a_refusal(noise: bytes, kind: str) -> None:
    for body in (noise, part("file", b"x")[: len(noise)] + noise, b"--line\r\n" + noise + b"\r\n--line--"):
        for reported in (TYPE, kind):
            try:
                parse_form(body, reported)
            except Problem:
                continue
