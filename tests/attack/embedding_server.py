"""A server that makes vectors at once, whatever they are of, for a gateway whose embeddings are attacked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

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


class _Answers(BaseHTTPRequestHandler):
    """Two numbers for each text."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answer `/v1/embeddings`."""
        requested = json.loads(self.rfile.read(int(self.headers["content-length"])))
        texts = requested["input"] if isinstance(requested["input"], list) else [requested["input"]]
        data = [
            {"object": "embedding", "index": place, "embedding": [0.5, 0.5]} for place in range(len(texts))
        ]
        usage = {"prompt_tokens": len(texts), "total_tokens": len(texts)}
        body = json.dumps({"object": "list", "model": "vectors", "data": data, "usage": usage}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@contextmanager
def vectors() -> Iterator[str]:
    """Serve, and give the file of upstreams that names the server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield UPSTREAMS.format(port=server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
