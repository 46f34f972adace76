"""`python -m tests.chaos.echo`: our server and its WebSocket protocol around an application that repeats what it hears."""

from __future__ import annotations

import os

import uvloop

from app.http_protocol import ServerLimits
from app.server import listen, server
from tests.chaos.baseline_server import application

MESSAGE_BYTES = 16 * 1024 * 1024
"""uvicorn's own limit: the suite sends more than our wire protocol allows."""
COMMAND = ("tests.chaos.echo",)


def main() -> None:
    """Serve until a signal."""
    echo = server(application("echo"), server_limits=ServerLimits(request_s=10.0, max_sockets=1_000))
    echo.config.ws_max_size = MESSAGE_BYTES
    with listen("127.0.0.1", int(os.environ["MIDSTREAM_PORT"])) as listener:
        uvloop.run(echo.serve(sockets=[listener]))


if __name__ == "__main__":
    main()
