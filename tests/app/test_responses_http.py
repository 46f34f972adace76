"""The Responses endpoint over HTTP: streams, clients that leave, broken requests."""

from __future__ import annotations

import json
from typing import Any

from tests.app.in_process_service import InProcessService
from tests.app.raw_http import peer

HELLO: dict[str, Any] = {"model": "midstream-demo", "input": "Hello!"}


def post(running: InProcessService, body: Any, path: str = "/v1/responses", method: str = "POST") -> str:
    """A request that a test writes itself."""
    text = body if isinstance(body, str) else json.dumps(body)
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{running.port}\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(text)}\r\n\r\n{text}"


async def request(
    running: InProcessService, body: Any, path: str = "/v1/responses", method: str = "POST"
) -> tuple[int, Any]:
    """The status, and the JSON of the answer."""
    async with peer(running) as client:
        client.write(post(running, body, path, method))
        head, _, reported = (await client.rest()).partition("\r\n\r\n")
    return int(head.split()[1]), json.loads(reported)


async def test_a_stream_has_all_of_the_text_whatever_its_pieces(running: InProcessService) -> None:
    """Even pieces that are longer than their event's number."""
    text = "A piece that is much longer than the number of its event. " * 3
    running.engine.script([text, text])
    async with peer(running) as client:
        client.write(post(running, HELLO | {"stream": True}))
        reported = (await client.rest()).split("data: ")[1:-1]
    events = [json.loads(one.split("\n")[0]) for one in reported]
    assert "".join(event.get("delta", "") for event in events) == text + text
