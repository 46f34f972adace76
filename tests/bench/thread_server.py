"""A contender of the benchmark: a thread per request that runs `model.generate` with a text streamer.

This is the usual way to put a chat with transformers behind a WebSocket. It implements as much of wire protocol v1 as a
turn and its cancel need, so that the same client measures it; it stores no history and checks no input.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import msgspec
import torch
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket
from transformers import (
    AsyncTextIteratorStreamer,
    AutoModelForCausalLM,
    AutoTokenizer,
    StoppingCriteria,
    StoppingCriteriaList,
)

MOST_THREADS = 256
"""Requests at once; more would wait, and no level has so many. Idle threads are used again."""


class Stopped(StoppingCriteria):
    """Ends a generation after the step in which it was cancelled; counts steps."""

    def __init__(self) -> None:
        self.steps = 0
        self.steps_at_cancel: int | None = None
        self.event = threading.Event()

    def cancel(self) -> None:
        """Stop the generation."""
        if self.steps_at_cancel is None:
            self.steps_at_cancel = self.steps
            self.event.set()

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
        """Return one truth value per row; `generate` calls it after each step."""
        self.steps += 1
        return torch.full((input_ids.shape[0],), self.event.is_set(), device=input_ids.device)


class Threads:
    """The model, and a thread for each of its requests."""

    def __init__(self, folder: str, device: str, dtype: str) -> None:
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        self._model = model.to(device).eval()
        self._pool = ThreadPoolExecutor(MOST_THREADS)

    async def texts(self, content: str, max_new_tokens: int, stopped: Stopped) -> AsyncIterator[str]:
        """Generate a greedy reply in a thread and yield its text as it comes. Raises what `generate` raises."""
        streamer = AsyncTextIteratorStreamer(self._tokenizer, skip_prompt=True, skip_special_tokens=True)
        generate = partial(self._generate, content, max_new_tokens, stopped, streamer)
        work = asyncio.get_running_loop().run_in_executor(self._pool, generate)
        async for text in streamer:
            if text:
                yield text
        await work

    def _generate(self, content: str, max_new_tokens: int, stopped: Stopped, streamer: Any) -> None:
        try:
            messages = [{"role": "user", "content": content}]
            prompt = self._tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
            ).to(self._model.device)
            criteria = StoppingCriteriaList([stopped])
            self._model.generate(
                **prompt, do_sample=False, temperature=None, top_p=None, max_new_tokens=max_new_tokens,
                streamer=streamer, stopping_criteria=criteria,
            )  # fmt: skip
        except BaseException:
            streamer.end()  # the reader of the texts would wait for ever
            raise


class Chat:
    """One socket: any number of replies, each by its conversation's id."""

    def __init__(self, socket: WebSocket, threads: Threads) -> None:
        self._socket = socket
        self._threads = threads
        self._running: dict[str, Stopped] = {}

    async def serve(self) -> None:
        """Read frames until the client leaves; then stop its replies."""
        await self._socket.accept()
        try:
            async with asyncio.TaskGroup() as replies:
                async for text in self._socket.iter_text():
                    await self._take(msgspec.json.decode(text), replies)
                self._stop_all()
        finally:
            self._stop_all()

    async def _take(self, frame: dict[str, Any], replies: asyncio.TaskGroup) -> None:
        match frame["type"]:
            case "hello":
                await self._put(type="ready")
            case "send":
                replies.create_task(self._reply(frame))
            case "cancel":
                if stopped := self._running.get(frame["conversation_id"]):
                    stopped.cancel()
                await self._put(type="cancelled")

    async def _reply(self, frame: dict[str, Any]) -> None:
        stopped = self._running[frame["conversation_id"]] = Stopped()
        try:
            async for text in self._threads.texts(
                frame["content"], frame["params"]["max_new_tokens"], stopped
            ):
                await self._put(type="delta", text=text)
        finally:
            del self._running[frame["conversation_id"]]
        at = stopped.steps_at_cancel
        cancel = {"reason": "length"} if at is None else {
            "reason": "cancelled", "cancel": {"steps_after": stopped.steps - at}
        }  # fmt: skip
        await self._put(type="done", usage={"generated_tokens": stopped.steps}, **cancel)

    async def _put(self, **frame: Any) -> None:
        await self._socket.send_text(msgspec.json.encode(frame).decode())

    def _stop_all(self) -> None:
        for stopped in self._running.values():
            stopped.cancel()


def main() -> None:
    """Serve: PORT MODEL DEVICE DTYPE."""
    port, model, device, dtype = sys.argv[1:]
    threads = Threads(model, device, dtype)

    async def chat(socket: WebSocket) -> None:
        await Chat(socket, threads).serve()

    async def ready(_request: Request) -> PlainTextResponse:
        return PlainTextResponse("ready")

    app = Starlette(routes=[WebSocketRoute("/v1/ws", chat), Route("/readyz", ready)])
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")


if __name__ == "__main__":
    main()
