"""`python -m tests.chaos.baseline_server`: a minimal server to compare ours with.

It has the same uvicorn, event loop and frame codec, and almost no application. After a greeting it waits, or sends deltas as
fast as it can.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from connections.protocol import codec
from sessions.events import Delta
from sessions.limits.bounds import HEARTBEAT_S

WORD = "word "


def command(kind: str) -> tuple[str, ...]:
    """Return the module and the argument that start a bare server: idle or deltas."""
    return "tests.chaos.baseline_server", kind


async def idle(websocket: WebSocket) -> None:
    """Greet, and wait."""
    await websocket.receive_text()
    await websocket.send_text('{"type":"ready"}')
    while True:
        await websocket.receive_text()


async def deltas(websocket: WebSocket) -> None:
    """Greet, then send deltas, one for each turn of the event loop."""
    await websocket.receive_text()
    await websocket.send_text('{"type":"ready"}')
    conversation_id, turn_id = (await websocket.receive_text())[:32], f"turn_{'0' * 16}"
    for number in count(2):
        delta = Delta(
            conversation_id=conversation_id, turn_id=turn_id, seq=number, first_seq=number, off=number * len(WORD),
            text=WORD, tokens=1,
        )  # fmt: skip
        await websocket.send_text(codec.encode(delta).decode())
        await asyncio.sleep(0)


KINDS: dict[str, Callable[[WebSocket], Awaitable[None]]] = {"idle": idle, "deltas": deltas}


def main() -> None:
    """Serve until a signal; it is ready immediately."""
    serve = KINDS[sys.argv[1]]

    async def endpoint(websocket: WebSocket) -> None:
        await websocket.accept()
        with suppress(WebSocketDisconnect):
            await serve(websocket)

    async def ready(_: Request) -> Response:
        return Response()

    uvicorn.run(
        Starlette(routes=[WebSocketRoute("/v1/ws", endpoint), Route("/readyz", ready)]),
        port=int(os.environ["MIDSTREAM_PORT"]),
        loop="uvloop",
        ws="websockets-sansio",
        ws_ping_interval=HEARTBEAT_S,
        ws_ping_timeout=HEARTBEAT_S,
        ws_per_message_deflate=False,
        lifespan="off",
        access_log=False,
        log_level="warning",
        backlog=2048,
        timeout_graceful_shutdown=1,
    )


if __name__ == "__main__":
    main()
