"""The table of bounds in PROTOCOL.md, from the numbers of `sessions/limits/bounds.py`."""

from __future__ import annotations

from collections.abc import Iterable

from sessions.limits.bounds import (
    BAD_FRAMES,
    FRAMED,
    HEARTBEAT_S,
    HELLO_S,
    IMAGE_BYTES,
    LARGE_BODIES,
    LARGE_BODY_BYTES,
    LARGE_MESSAGE_S,
    MAX_AHEAD_BYTES,
    MAX_BODY_BYTES,
    MAX_CONTAINERS,
    MAX_DEPTH,
    MAX_FRAGMENTS,
    MAX_FRAME_BYTES,
    MAX_FRAMING_BYTES,
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    MAX_HELLO_FRAMES,
    MAX_MESSAGES,
    MAX_VALUES,
    OUTBOX_BYTES,
    PIPELINED,
    RATES,
    SMALL_BYTES,
    WRITE_BUFFER_BYTES,
    Bound,
    Rate,
)


def size(count: float) -> str:
    """Return a number of bytes in words."""
    return f"{count / 1024**2:g} MiB" if count >= 1024**2 else f"{count / 1024:g} KiB"


def rate(given: Rate, *, in_bytes: bool = False) -> str:
    """Return a rate in words."""
    per_s, burst = (size(one) if in_bytes else f"{one:g}" for one in (given.per_s, given.burst))
    return f"{per_s} a second, {burst} at once"


_SLOWER, _OVERLOADED, _INVALID = ("slower reading", "503 `overloaded`", "400 `invalid_value`")
CONNECTION_BOUNDS: tuple[tuple[str, str, str, Bound | None], ...] = (
    ("text frames⁴", rate(RATES[Bound.TEXT_FRAMES]), f"{_SLOWER}¹", Bound.TEXT_FRAMES),
    ("bytes in text frames", rate(RATES[Bound.TEXT_BYTES], in_bytes=True), f"{_SLOWER}¹", Bound.TEXT_BYTES),
    ("binary frames", rate(RATES[Bound.BINARY_FRAMES]), f"{_SLOWER}¹", Bound.BINARY_FRAMES),
    (
        "bytes in binary frames",
        rate(RATES[Bound.BINARY_BYTES], in_bytes=True),
        f"{_SLOWER}¹",
        Bound.BINARY_BYTES,
    ),
    ("pings and pongs", rate(RATES[Bound.CONTROL_FRAMES]), f"{_SLOWER}¹", Bound.CONTROL_FRAMES),
    ("size of a message", f"{size(MAX_FRAME_BYTES)}⁵", "1009", None),
    (
        f"time for a message above {size(MAX_FRAME_BYTES)}",
        f"{LARGE_MESSAGE_S:g} s",
        "1008",
        Bound.REQUEST_TIME,
    ),
    ("fragments of a message", f"{MAX_FRAGMENTS}", "1008", Bound.FRAGMENTS),
    ("frames before the first complete message", f"{MAX_HELLO_FRAMES}", "1008", Bound.HELLO_FRAMES),
    ("time for `hello`", f"{HELLO_S:g} s", "4408", Bound.HELLO_TIME),
    ("frames that break this protocol", f"{BAD_FRAMES} in a minute", "1008", Bound.BAD_FRAMES),
    ("frames that break RFC 6455 or are compressed", "not allowed", "1002", None),
    (
        "time to answer a ping from the server",
        f"{HEARTBEAT_S:g} s",
        "1011, 1008¹ or a TCP reset",
        Bound.HEARTBEAT,
    ),
    (
        "sent bytes that the client has not read",
        size(WRITE_BUFFER_BYTES),
        "the server reads nothing more",
        Bound.UNREAD,
    ),
    ("bytes of frames that wait to be sent", size(OUTBOX_BYTES), "1013", Bound.OUTBOX),
    ("sockets of one address that have not sent `hello`", "a share²", "503", Bound.ADDRESS_SHARE),
    ("an HTTP request's head", f"{size(MAX_HEAD_BYTES)}, {MAX_HEADERS} headers³", "431", Bound.REQUEST_HEAD),
    (
        *(
            "chunk headers and trailers of a body",
            f"{size(MAX_FRAMING_BYTES)} plus {FRAMED - 1} times the body's size",
        ),
        *("431", Bound.REQUEST_HEAD),
    ),
    ("size of a body", size(MAX_BODY_BYTES), "413 `request_too_large`", None),
    ("images of all running turns", f"{size(IMAGE_BYTES)}, in [shares](#shares)", _OVERLOADED, None),
    (
        *(f"bodies above {size(LARGE_BODY_BYTES)} in progress", f"{LARGE_BODIES}, in [shares](#shares)"),
        *(_OVERLOADED, None),
    ),
    (
        *(f"messages above {size(MAX_FRAME_BYTES)} in progress", f"{LARGE_BODIES}, together with these bodies"),
        *("1013", None),
    ),
    (
        *(
            f"JSON in a body above {size(SMALL_BYTES)}",
            f"{MAX_VALUES:,} values, {MAX_CONTAINERS:,} objects, depth {MAX_DEPTH}",
        ),
        *(_INVALID, None),
    ),
    ("messages in a body", f"{MAX_MESSAGES:,}", _INVALID, None),
    ("text in a body", "256 bytes per token of the context window", "400 `context_length_exceeded`", None),
    ("time to receive a request", "10 s", "408", Bound.REQUEST_TIME),
    ("pipelined requests", f"{size(MAX_AHEAD_BYTES)}; {rate(PIPELINED)}", _SLOWER, Bound.PIPELINED),
    ("sockets of the server", "`MIDSTREAM_MAX_CONNECTIONS`", "503", Bound.SOCKETS),
)
"""What is bounded, its bound, what happens beyond it, and the name under which that is counted."""

_NONE = "\N{EN DASH}"


def protocol(text: str) -> str:
    """Return the text of PROTOCOL.md with the table as it is in the code."""
    connection = table(
        ("What", "Bound", "Beyond it", "Metric label"),
        (
            (what, most, beyond, f"`{name}`" if name else _NONE)
            for what, most, beyond, name in CONNECTION_BOUNDS
        ),
    )
    return with_table(text, connection)


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Return the lines of a table."""
    return [_line(head), "|---" * len(head) + "|", *map(_line, rows)]


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def with_table(text: str, lines: list[str]) -> str:
    """Put a table in the place of the one with the same head."""
    before, head, rest = text.partition(f"{lines[0]}\n")
    if not head:
        raise ValueError(f"PROTOCOL.md has no table {lines[0]}")
    _, _, after = rest.partition("\n\n")
    return before + "\n".join(lines) + "\n\n" + after
