"""A Ray Serve app that speaks OpenAI's chat completions over this project's engine and the demo model.

Run by the command with Ray's own Python: `python -m tests.upstreams.ray_app PORT`; SIGTERM ends it.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any
from uuid import uuid4

import ray
import yaml
from ray import serve
from ray.serve.schema import ServeDeploySchema
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse

from engine.machine import EngineOptions
from engine.messages import Chunk, Finished, Message, Params, Request
from engine.process.client import EngineClient

MODEL = "midstream-demo"
FOR_OPERATORS = Path(__file__).parents[2] / "deploy" / "ray_serve_llm.yaml"
CHECKPOINT = Path(__file__).parents[2] / "demo_model" / "checkpoint"


@serve.deployment(max_ongoing_requests=64)
class DemoModel:
    """One replica: an engine's process, which starts with the first request."""

    def __init__(self) -> None:
        self._engine = EngineClient(EngineOptions(model=str(CHECKPOINT), dtype="float32"))
        self._running: AbstractAsyncContextManager[EngineClient] | None = None

    async def __call__(self, request: HttpRequest) -> Response:
        if self._running is None:
            self._running = self._engine.running()
            await self._running.__aenter__()
        await self._engine.ready(timeout_s=120)
        match request.url.path:
            case "/v1/models":
                return JSONResponse({"object": "list", "data": [{"id": MODEL, "object": "model"}]})
            case "/open":
                return JSONResponse({"open": self._engine.open_requests})
            case "/v1/chat/completions":
                return StreamingResponse(self._events(await request.json()), media_type="text/event-stream")
            case _:
                return JSONResponse({"error": {"message": "not found"}}, 404)

    async def _events(self, body: dict[str, Any]) -> AsyncIterator[str]:
        params = Params(max_new_tokens=body["max_tokens"], do_sample=body.get("temperature") != 0)
        messages = tuple(Message(one["role"], one["content"]) for one in body["messages"])
        stream = self._engine.generate(Request(uuid4().hex, messages, params))
        try:
            async for output in stream:
                match output:
                    case Chunk():
                        yield _event({"choices": [{"delta": {"content": output.text}}]})
                    case Finished():
                        yield _event({"choices": [{"delta": {}, "finish_reason": output.reason.value}]})
                        totals = {
                            "prompt_tokens": output.prompt_tokens,
                            "completion_tokens": output.generated_tokens,
                        }
                        yield _event({"choices": [], "usage": totals})
            yield "data: [DONE]\n\n"
        finally:
            stream.cancel()


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value)}\n\n"


def main(port: int) -> None:
    """Hold the file for operators against Ray's own schema, then serve until SIGTERM."""
    ServeDeploySchema.model_validate(yaml.safe_load(FOR_OPERATORS.read_text()))
    over = threading.Event()
    ray.init(num_cpus=2, include_dashboard=False, configure_logging=False, log_to_driver=False)
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(DemoModel.bind())
        over.wait()
    finally:
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
