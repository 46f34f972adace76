"""A server that makes vectors at once, whatever they are of, for a gateway whose embeddings are attacked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from tests.server_process import app_in_thread

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
    with app_in_thread(Route("/v1/embeddings", _embed, methods=["POST"])) as port:
        yield UPSTREAMS.format(port=port)
