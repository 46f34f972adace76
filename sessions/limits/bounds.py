"""All bounds, each written once. PROTOCOL.md shows them, with what happens beyond each.

Numbers that the operator may change are the defaults of settings. Lengths of single fields are with their parsers.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Bound(StrEnum):
    """Bounds of a connection whose excess is counted (`midstream_bounds_reached_total`)."""

    TEXT_FRAMES = "text_frames"
    TEXT_BYTES = "text_bytes"
    BINARY_FRAMES = "binary_frames"
    BINARY_BYTES = "binary_bytes"
    CONTROL_FRAMES = "control_frames"
    FRAGMENTS = "fragments"
    HELLO_FRAMES = "hello_frames"
    HELLO_TIME = "hello_time"
    ADDRESS_SHARE = "address_share"
    UNREAD = "unread"
    OUTBOX = "outbox"
    BAD_FRAMES = "bad_frames"
    HEARTBEAT = "heartbeat"
    PIPELINED = "pipelined"
    REQUEST_HEAD = "request_head"
    REQUEST_TIME = "request_time"
    SOCKETS = "sockets"


class Rate(msgspec.Struct, frozen=True):
    """A rate: `burst` at once, and `per_s` continuously."""

    per_s: float
    burst: float


def rate_of(per_s: float) -> Rate:
    """Return the rate of owners, or of groups, for a setting."""
    return Rate(per_s, max(1.0, per_s * BURST_S))


KIB, MIB = 1024, 1024**2

# one connection
RATES = {
    Bound.TEXT_FRAMES: Rate(64, 256),
    Bound.TEXT_BYTES: Rate(256 * KIB, MIB),
    Bound.BINARY_FRAMES: Rate(128, 256),
    Bound.BINARY_BYTES: Rate(256 * KIB, 512 * KIB),
    Bound.CONTROL_FRAMES: Rate(16, 64),
}
"""Sound takes 50 to 100 binary frames a second of about 1 KB; nobody types 64 messages a second."""
REFUSED_REQUEST_FRAMES = 64
"""Text frames that a request counts as if it was refused for too many requests: a second's worth."""
MAX_FRAME_BYTES = 64 * KIB
"""A larger frame closes the connection with 1009 (RFC 6455, section 7.4.1)."""
LARGE_MESSAGE_BYTES = MIB
"""Bytes of a large message, where an endpoint takes them: an image of some 768 KiB in base64."""
LARGE_MESSAGE_S = 15.0
"""How long one may take to come. A frame of this size keeps within its connection's budget for four seconds."""
MAX_FRAGMENTS = 64
"""Fragments of a message, empty ones included; more close the connection with 1008."""
MAX_HELLO_FRAMES = 16
"""Pings, pongs and fragments before the first whole message; one more closes the connection with 1008."""
HELLO_S = 5.0
"""Seconds for the first message of a socket, if that authenticates."""
PART_BYTES = 512
"""Bytes that are parsed at a time: at most 85 WebSocket frames, or 28 requests."""
BAD_FRAMES = 20
BAD_FRAMES_S = 60.0
HEARTBEAT_S = 20.0
WRITE_BUFFER_BYTES = 32 * KIB
"""Bytes that may wait for the kernel here; with more, the application waits."""
OUTBOX_BYTES = 512 * KIB

# one HTTP request
MAX_HEAD_BYTES = 64 * KIB
MAX_HEADERS = 128
"""Header lines of a request. A head of 64 KiB could have 20,000, each an object or two."""
MAX_FRAMING_BYTES = 8 * KIB
"""Bytes after a head that carry no body: chunk sizes and extensions, trailers, empty lines before the next head."""
FRAMED = 8
"""Bytes on the wire that each byte of a body may take besides these: a chunk of one byte has six."""
MAX_AHEAD_BYTES = 64 * KIB
"""Bytes of requests behind the one that is being answered; the rest waits in the kernel."""
PIPELINED = Rate(32, 32)
"""HTTP requests that are sent before the last one's answer (pipelined)."""
MAX_BODY_BYTES = 4 * MIB
"""Most bytes of a body, which holds a whole conversation; a model can read much less."""
LARGE_BODY_BYTES = 256 * KIB
"""Only few longer bodies are read at once: with the parsed objects, each takes several times its length."""
LARGE_BODIES = 12
"""Long HTTP bodies that are read at once; each takes several times its length of memory."""
SMALL_BYTES = 16 * KIB
"""A shorter body can't hold much: it is not looked at before it is parsed."""
MAX_CONTAINERS = 10_000
"""Most objects and lists: a chat of 2,000 messages with parts has fewer."""
MAX_DEPTH = 64
MAX_VALUES = 50_000
MAX_MESSAGES = 2048

# owners, keys and addresses
MESSAGES_PER_S = 10.0
READS_PER_S = 20.0
BURST_S = 5.0
"""A burst of messages or reads may hold what the rate allows in this many seconds."""
GROUPS_TIMES = 10
"""A key or an address may send as much as this many owners together."""
OWNERS_PART = 3
"""An owner may hold a third of what is free."""
KEYS_TIMES = 3
"""A key may hold three times what is free."""
ADDRESSES_PART = 2
"""An address may hold half of what is free."""
HEAVY_PART = 2
"""What takes several slots may take half of what is free."""
HANDSHAKES_PART = 8
LEAST_HANDSHAKES = 16
SITE_BITS = 64
"""Prefix of an IPv6 address: a subscriber usually has a whole network."""
NEAR_LIMIT_FRACTION = 5
"""A quota is near its end if at most this fraction (a fifth) is left."""

# the server
MAX_ACCEPTING = 256
"""Concurrent messages that are being accepted: each calls the store several times, and its connections are few."""
SLOT_CHARS = 4096
"""A longer message takes more of these places: it is in memory several times until it is accepted."""
MAX_SLOTS = 16
"""That one message takes: long bodies are few at once, and all of them leave places for others."""
IMAGE_BYTES = 256 * MIB
"""Bytes of images that turns hold in memory, from their request to their end."""
IMAGE_SLOT_BYTES = MIB
"""So many bytes of a turn's images take one of those places."""
MAX_TURNS = 1024
MAX_CONNECTIONS = 10_000
MAX_CLIENT_CONNECTIONS = 64
MAX_PENDING_CONNECTIONS = 2000
