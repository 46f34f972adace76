"""A small server in place of vLLM. It is started by the same command, serves the same routes and writes the same lines.

A script named `python` runs it (`conftest.py`). The text of the last message chooses what it does.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

WINDOW = 4096
CHILD = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
LINES = (
    "(APIServer pid=7) INFO 11-22 18:37:16 [model.py:733] Resolved architecture: LlamaForCausalLM",
    "(Worker pid=9) INFO 11-22 18:37:35 [cpu_model_runner.py:68] Starting to load model demo...",
    "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:00<?, ?it/s]",
)


class State:
    """The state of this process."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.answers.set()
        self.children: list[int] = []
        self.arguments = dict(
            one.removeprefix("--").partition("=")[::2] for one in sys.argv if one[:2] == "--"
        )

    @property
    def model(self) -> str:
        return self.arguments["served-model-name"]


state = State()


def main() -> None:
    """Serve by the command line, or fail with the error that the file of the environment names."""
    mood = Path(os.environ["STAND_IN_MOOD"])
    if trouble := mood.read_text(encoding="utf-8"):
        sys.exit(trouble)
    for line in LINES:
        _print_line(line)
    state.children = [_child(alone=False), _child(alone=True)]
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((state.arguments["host"], int(state.arguments["port"])))
    uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1)).run([listener])


def _print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _child(*, alone: bool) -> int:
    """Start a process that ignores SIGTERM. `alone`: in a session of its own, which signals to our group don't reach."""
    command = [sys.executable, "-c", CHILD]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=alone)
    assert process.stdout is not None
    process.stdout.readline()
    return process.pid


async def _health(request: Request) -> Response:
    await state.answers.wait()
    return Response()


async def _models(request: Request) -> Response:
    _check_key(request)
    return JSONResponse({"data": [{"id": state.model, "max_model_len": WINDOW}]})


async def _tokenize(request: Request) -> Response:
    return JSONResponse({"count": 42, "max_model_len": WINDOW})


async def _chat(request: Request) -> Response:
    _check_key(request)
    prompt = (await request.json())["messages"][-1]["content"]
    return StreamingResponse(_events(prompt), media_type="text/event-stream")


async def _events(prompt: str) -> AsyncIterator[str]:
    reported = {"pids": [os.getpid(), *state.children], "environ": dict(os.environ), "argv": sys.argv}
    if prompt == "who are you":
        yield _event(json.dumps(reported))
    else:
        yield _event("Hello")
    if prompt == "write to the log":
        _print_line("(APIServer pid=7) INFO 11-22 18:37:16 [a.py:1] an everyday line")
        _print_line("(APIServer pid=7) ERROR 11-22 18:37:16 [a.py:1] a grave line")
        _print_line("(APIServer pid=7) ERROR 11-22 18:37:16 [a.py:1] ValueError: words of a client")
        _print_line("ValueError: a secret of a client")
    if prompt == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if prompt == "stall":
        state.answers.clear()
    if prompt in {"stall", "go on"}:
        await asyncio.sleep(60)
    yield _event(".", "stop")
    yield "data: [DONE]\n\n"


def _event(text: str, reason: str | None = None) -> str:
    chunk = {"choices": [{"delta": {"content": text}, "finish_reason": reason}]}
    return f"data: {json.dumps(chunk)}\n\n"


class _NoKey(Exception):
    """A request without the key."""


def _check_key(request: Request) -> None:
    if request.headers.get("authorization") != f"Bearer {os.environ['VLLM_API_KEY']}":
        raise _NoKey


async def _refused(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "Unauthorized"}, 401)


app = Starlette(
    routes=[
        Route("/health", _health),
        Route("/v1/models", _models),
        Route("/tokenize", _tokenize, methods=["POST"]),
        Route("/v1/chat/completions", _chat, methods=["POST"]),
    ],
    exception_handlers={_NoKey: _refused},
)

if __name__ == "__main__":
    main()
