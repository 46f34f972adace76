"""The least that may be asked of each HTTP endpoint: what attacks are made of that try them all."""

from __future__ import annotations

import json
from typing import Any

from tests.attack.client import Attacker
from tests.attack.families.bodies import MESSAGE, post

MODEL, VOICE = "midstream-demo", "espeak-ng"
SPEECH = "/v1/audio/speech"
_RUN = {"threadId": "t", "runId": "r", "messages": [{"id": "m", **MESSAGE}]}
_UI = {"id": "m", "role": "user", "parts": [{"type": "text", "text": "Hello."}]}

STREAMED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": MODEL, "messages": [MESSAGE], "max_tokens": 1_000, "stream": True},
    "/v1/completions": {"model": MODEL, "prompt": "Hello.", "max_tokens": 1_000, "stream": True},
    "/v1/responses": {"model": MODEL, "input": "Hello.", "max_output_tokens": 1_000, "stream": True},
    "/v1/messages": {"model": MODEL, "messages": [MESSAGE], "max_tokens": 1_000, "stream": True},
    "/v1/ag-ui": _RUN | {"forwardedProps": {"max_tokens": 1_000}},
    "/v1/ai-sdk/chat": {"id": "unread", "messages": [_UI], "on_busy": "enqueue"},
}
"""A long reply as a stream, by each endpoint that has such."""
WHOLE: dict[str, dict[str, Any]] = {
    "/v1/responses/input_tokens": {"model": MODEL, "input": "Hello."},
    "/v1/responses/compact": {"model": MODEL, "input": "Hello."},
    "/v1/messages/count_tokens": {"model": MODEL, "messages": [MESSAGE]},
    "/v1/embeddings": {"model": "vectors", "input": "Hello."},
    SPEECH: {"model": VOICE, "voice": "en-us", "input": "Hello."},
}
"""What is answered at once."""
BODIES = STREAMED | WHOLE


def minimal_request(path: str, *, key: str | None = None, **more: object) -> bytes:
    """Return the request of an endpoint, with other fields."""
    return post(path, json.dumps(BODIES[path] | more, separators=(",", ":")).encode(), key=key)


async def a_spoken_sentence(attacker: Attacker) -> str:
    """Have one sentence spoken: the first loads PyAV, 20 MB that stay, whoever asks."""
    await attacker.ask(await attacker.connect(), minimal_request(SPEECH, key=attacker.client_id))
    return ""
