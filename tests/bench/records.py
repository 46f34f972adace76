"""What the process of the clients is told, and what it saw. Times are in seconds of one monotonic clock."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from tests.bench.workload import PROMPT


class ServerApi(StrEnum):
    """How a server is spoken to."""

    WEBSOCKET = "websocket"
    """Midstream's wire protocol v1, or as much of it as a turn and its cancel need."""
    SSE = "sse"
    """OpenAI's chat completions, streamed, as transformers serves them; a cancel closes the connection."""
    CHAT = "chat"
    """OpenAI's chat completions, streamed, with OpenAI's own fields alone."""
    REALTIME = "realtime"
    """OpenAI's Realtime protocol, its text part. One reply a connection."""
    RESPONSES = "responses"
    """The Responses API, streamed over HTTP; nothing is stored."""
    MESSAGES = "messages"
    """Anthropic's Messages, streamed."""
    AI_SDK = "ai_sdk"
    """The AI SDK's UI message stream over HTTP. Each prompt is a chat of its own, which is kept."""


class Measure(StrEnum):
    """What the clients do."""

    LOAD = "load"
    """Ask and read to the end."""
    STOP_ONE = "stop_one"
    """Ask, and cancel each for itself while the others read on."""
    STOP_ALL = "stop_all"
    """Ask, cancel all at once, and watch until the server falls silent."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement. `url` is the server's http address, `pid` the root of its processes.

    Replies are greedy unless a `temperature` is named; over HTTP they always are.
    """

    measure: Measure
    api: ServerApi
    url: str
    model: str
    pid: int
    clients: int
    replies: int
    max_new_tokens: int
    cancel_after_texts: int
    limit_s: float
    prompt: str = PROMPT
    temperature: float = 0.0
    top_p: float = 1.0
    prompts: tuple[str, ...] = ()
    """One for each reply, client by client, where they are not all alike."""
    more: dict[str, object] = {}
    """Further fields of a request in OpenAI's words; they outrank the greedy ones."""
    anew: bool = False
    """Whether each chat completion goes over a connection of its own."""
    greets: bool = False
    """Whether a client over HTTP has asked something on its connection before, as one of a socket has said hello."""


class Reply(msgspec.Struct, frozen=True):
    """A reply as its reader saw it. `arrivals`: when each piece of text came; `tokens`: as the server counts."""

    sent: float
    arrivals: tuple[float, ...]
    ended: float
    tokens: int


class Stop(msgspec.Struct, frozen=True):
    """A cancel as its sender saw it: how long until `cancelled` and `done` came, in seconds."""

    cancelled_s: float
    done_s: float
    steps_after: int | None


class Silence(msgspec.Struct, frozen=True):
    """A server after all its replies were cancelled: when it was idle again, and the CPU time until then."""

    after_s: float
    cpu_s: float


class Observed(msgspec.Struct, frozen=True):
    """What a job brought. `silence` is None where it was not looked for, or can't be seen on this system."""

    replies: tuple[Reply, ...] = ()
    stops: tuple[Stop, ...] = ()
    silence: Silence | None = None
