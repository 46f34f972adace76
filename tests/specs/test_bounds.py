"""Each bound is written once: PROTOCOL.md has those that clients meet."""

from __future__ import annotations

import pytest

from sessions.limits import bounds
from sessions.limits.bounds import PIPELINED, RATES, Bound, Rate
from tests.docs.documents import PROTOCOL

_TABLE = PROTOCOL.read_text().partition("| What | Bound |")[2].partition("\n\n")[0].splitlines()[2:]
ROWS = {
    what: (most, beyond, label) for what, most, beyond, label in (row[2:-2].split(" | ") for row in _TABLE)
}
"""The table of bounds: what happens beyond each, and the name under which that is counted."""


def size(count: float) -> str:
    return f"{count / 1024**2:g} MiB" if count >= 1024**2 else f"{count / 1024:g} KiB"


def rate(given: Rate, *, in_bytes: bool = False) -> str:
    per_s, burst = (size(one) if in_bytes else f"{one:g}" for one in (given.per_s, given.burst))
    return f"{per_s} a second, {burst} at once"


FRAME, BODY, SMALL = (
    size(one) for one in (bounds.MAX_FRAME_BYTES, bounds.LARGE_BODY_BYTES, bounds.SMALL_BYTES)
)


@pytest.mark.parametrize(
    ("what", "most"),
    [
        ("size of a message", f"{FRAME}⁵"),
        (f"time for a message above {FRAME}", f"{bounds.LARGE_MESSAGE_S:g} s"),
        ("fragments of a message", f"{bounds.MAX_FRAGMENTS}"),
        ("frames before the first complete message", f"{bounds.MAX_HELLO_FRAMES}"),
        ("time for `hello`", f"{bounds.HELLO_S:g} s"),
        ("frames that break this protocol", f"{bounds.BAD_FRAMES} in a minute"),
        ("time to answer a ping from the server", f"{bounds.HEARTBEAT_S:g} s"),
        ("sent bytes that the client has not read", size(bounds.WRITE_BUFFER_BYTES)),
        ("bytes of frames that wait to be sent", size(bounds.OUTBOX_BYTES)),
        ("an HTTP request's head", f"{size(bounds.MAX_HEAD_BYTES)}, {bounds.MAX_HEADERS} headers³"),
        (
            "chunk headers and trailers of a body",
            f"{size(bounds.MAX_FRAMING_BYTES)} plus {bounds.FRAMED - 1} times the body's size",
        ),
        ("size of a body", size(bounds.MAX_BODY_BYTES)),
        ("images of all running turns", f"{size(bounds.IMAGE_BYTES)}, in [shares](#shares)"),
        (f"bodies above {BODY} in progress", f"{bounds.LARGE_BODIES}, in [shares](#shares)"),
        (
            f"messages above {FRAME} in progress",
            f"{bounds.LARGE_BODIES}, counted together with such bodies",
        ),
        (
            f"JSON in a body above {SMALL}",
            f"{bounds.MAX_VALUES:,} values, {bounds.MAX_CONTAINERS:,} objects, depth {bounds.MAX_DEPTH}",
        ),
        ("messages in a body", f"{bounds.MAX_MESSAGES:,}"),
        ("pipelined requests", f"{size(bounds.MAX_AHEAD_BYTES)}; {rate(PIPELINED)}"),
    ],
)
def test_the_protocol_shows_the_bounds_of_the_code(what: str, most: str) -> None:
    assert ROWS[what][0] == most


def test_every_bound_that_is_counted_is_shown_with_its_rate() -> None:
    shown = {label.strip("`"): most for most, _, label in ROWS.values()}
    assert shown.keys() == {"\N{EN DASH}", *Bound}
    for bound, given in RATES.items():
        assert shown[bound] == rate(given, in_bytes=bound.endswith("_bytes"))


def test_the_rates_are_those_of_the_code() -> None:
    text = " ".join(PROTOCOL.read_text().split())
    rates = f"{bounds.MESSAGES_PER_S:g} messages and {bounds.READS_PER_S:g} reads a second, and up to five seconds' worth"
    assert f"An owner may send {rates} at once" in text
    assert f"of a key or address together may send {bounds.GROUPS_TIMES} times as much" in text
    assert f"and {bounds.MAX_ACCEPTING} messages may be waiting for `accepted`" in text
    assert (
        f"connections (default: {bounds.MAX_CLIENT_CONNECTIONS} for each client; further connections close with 4429)"
        in text
    )
    assert bounds.BURST_S == 5
