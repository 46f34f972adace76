"""Reads a form with a file (multipart/form-data, RFC 7578) in memory: nothing is written to disk. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.message import Message

import msgspec

from connections.api.errors import Problem, invalid

MAX_FIELDS = 32
_MAX_HEAD_BYTES = 4096
_MAX_VALUE_BYTES = 64 * 1024
"""Bytes of a field that is not a file."""
_MAX_PARAMETERS = 16
"""Of one header: before each, the library that reads them scans all again."""
_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{1,70}")
_BROKEN = "The form is damaged: it must be multipart/form-data as RFC 7578 describes it."


class File(msgspec.Struct, frozen=True):
    """A file as sent."""

    name: str
    media_type: str
    content: bytes


class Form(msgspec.Struct, frozen=True):
    """The values of each field in order, and the files."""

    values: dict[str, list[str]]
    files: dict[str, File]


def parse_form(body: bytes, content_type: str) -> Form:
    """Return the fields of a form. Raises Problem."""
    form = Form({}, {})
    for number, (head, content) in enumerate(_parts(body, _boundary(content_type))):
        if number >= MAX_FIELDS:
            raise invalid(None, f"The form has too many fields; it may have {MAX_FIELDS}.")
        _put(form, _headers(head), content)
    return form


def _put(form: Form, head: Message, content: bytes) -> None:
    name = head.get_param("name", header="content-disposition")
    if not isinstance(name, str):
        raise invalid(None, _BROKEN)
    file_name = head.get_filename()
    if file_name is not None or name == "file":
        form.files[name] = File(file_name or "", head.get_content_type(), content)
        return
    if len(content) > _MAX_VALUE_BYTES:
        raise invalid(None, f"A field of the form is too long: it may have {_MAX_VALUE_BYTES} bytes.")
    form.values.setdefault(name.removesuffix("[]"), []).append(content.decode(errors="replace"))


def _boundary(content_type: str) -> bytes:
    headers = Message()
    headers["content-type"] = content_type if content_type.count(";") <= _MAX_PARAMETERS else ""
    boundary = headers.get_param("boundary")
    is_form = headers.get_content_type() == "multipart/form-data"
    if not is_form or not isinstance(boundary, str) or not _BOUNDARY.fullmatch(boundary):
        raise Problem(
            415, "Send the recording as a form, multipart/form-data.", code="unsupported_media_type"
        )
    return b"--" + boundary.encode()


def _parts(body: bytes, boundary: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the head and the content of each part. Raises Problem."""
    at = body.find(boundary)
    while True:
        start = at + len(boundary)
        if at < 0:
            raise invalid(None, _BROKEN)
        if body.startswith(b"--", start):
            return
        head_end = body.find(b"\r\n\r\n", start, start + _MAX_HEAD_BYTES)
        at = body.find(b"\r\n" + boundary, max(head_end, start))
        if head_end < 0 or at < 0:
            raise invalid(None, _BROKEN)
        yield body[start + 2 : head_end], body[head_end + 4 : at]
        at += 2


def _headers(head: bytes) -> Message:
    """Raises Problem."""
    headers = Message()
    for line in head.decode(errors="replace").split("\r\n"):
        name, _, value = line.partition(":")
        if value.count(";") > _MAX_PARAMETERS:
            raise invalid(None, _BROKEN)
        if name.strip():
            headers[name.strip()] = value.strip()
    return headers
