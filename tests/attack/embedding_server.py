"""A server that makes vectors at once, whatever they are of, for a gateway whose embeddings are attacked."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

UPSTREAMS = """
[[upstream]]
name = "chat"
url = "http://127.0.0.1:9/v1"
model = "m"
context_tokens = 4096

[[embedder]]
name = "vectors"
url = "http://127.0.0.1:{port}/v1"
model = "vectors"
served_name = "vectors"
"""


async def _embed(request: Request) -> JSONResponse:
    texts = (await request.json())["input"]
    count = len(texts) if isinstance(texts, list) else 1
    data = [{"object": "embedding", "index": place, "embedding": [0.5, 0.5]} for place in range(count)]
    usage = {"prompt_tokens": count, "total_tokens": count}
    return JSONResponse({"object": "list", "model": "vectors", "data": data, "usage": usage})


@contextmanager
def vectors() -> Iterator[str]:
    """Serve, and give the file of upstreams that names the server."""
    app = Starlette(routes=[Route("/v1/embeddings", _embed, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            yield UPSTREAMS.format(port=listener.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join()
