"""OpenAI's own client of a service, and the waits that tests of its endpoints share."""

from __future__ import annotations

from typing import Any

from openai import AsyncOpenAI
from openai.types.responses import Response

from tests.app.in_process_service import InProcessService
from tests.jwt_signing import KEY

MODEL = "midstream-demo"
HELLO: list[Any] = [{"role": "user", "content": "Hello!"}]


def client_of(running: InProcessService, key: str = KEY) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{running.url}/v1", api_key=key, max_retries=0)


async def create_response(sdk: AsyncOpenAI, text: Any, **more: Any) -> Response:
    return await sdk.responses.create(model=MODEL, input=text, **more)


async def wait_for_requests(running: InProcessService, requests: int = 1) -> None:
    """Return once the engine has so many requests."""
    while len(running.engine.requests) < requests:
        await running.get("/healthz")
