"""vLLM as an `Engine`: the gateway starts it, watches it, restarts it when it dies, and asks it like any upstream."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Self

import msgspec

from engine.api import Engine, EngineState, EngineStatus, running
from engine.errors import EngineUnavailable, ModelNotUsable
from engine.launcher.options import HOST, NAME, LaunchOptions, command_of, upstream_of
from engine.launcher.process import ExitReason, LaunchedProcess, reserved_port
from engine.launcher.progress import line_of, stage_of
from engine.launcher.waiting_requests import WaitingRequests
from engine.messages import EngineStatistics, Message, ModelFacts, Request
from engine.process.supervision import Lifecycle, RestartLedger, RestartPolicy
from engine.reply_spec import PLAIN, ReplySpec
from engine.streamer import TimedStreamer
from engine.upstream.engine import UpstreamEngine
from engine.upstream.http_client import http_client
from engine.upstream.monitor import context_window

STALLED_S = 60.0
"""How long a vLLM that has served may answer nothing before it is killed."""
LOOK_S = 0.5
"""Seconds between two questions to a starting vLLM whether it serves."""
MAKE = "`make vllm` makes an environment for it; MIDSTREAM_ENGINE_PYTHON (--engine-python) names another one's Python"

log = logging.getLogger(__name__)


class LaunchedEngine:
    """Serves requests by a vLLM of its own.

    Nothing runs before `run`: put it into a task group, or use `running`. Requests wait while vLLM starts, for the first
    time or again. Requests that were sent to it are lost with it.
    """

    def __init__(
        self,
        options: LaunchOptions,
        *,
        restarts: RestartPolicy | None = None,
        stalled_s: float = STALLED_S,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """Take vLLM's options and those of its supervision. `on_change` is called in each new state, and must not raise."""
        self._options = options
        self._stalled_s = stalled_s
        self._on_change = on_change
        self._life = Lifecycle(on_change)
        self._ledger = RestartLedger(restarts or RestartPolicy(), random.random)
        self._waiting = WaitingRequests()
        self._upstream: UpstreamEngine | None = None
        self._change = asyncio.Event()
        self._place = ""

    @property
    def status(self) -> EngineStatus:
        """The state of vLLM, by the latest check while it serves."""
        status = self._life.status
        if self._upstream is None or self._upstream.status.state is EngineState.READY:
            return status
        return msgspec.structs.replace(self._upstream.status, restarts=status.restarts)

    @property
    def facts(self) -> ModelFacts | None:
        """The model, once vLLM has served it; stays known while it restarts."""
        return self._life.facts

    @property
    def parts(self) -> tuple[Engine, ...]:
        """The engine itself, alone."""
        return (self,)

    @property
    def open_requests(self) -> int:
        """The number of open requests."""
        return len(self._waiting) + (self._upstream.open_requests if self._upstream else 0)

    def has_open(self, request_id: str) -> bool:
        """Whether a request of this id is open."""
        sent = self._upstream is not None and self._upstream.has_open(request_id)
        return sent or request_id in self._waiting

    async def ready(self, timeout_s: float | None = None) -> ModelFacts:
        """Wait until requests are served. Raises ModelNotUsable, EngineUnavailable."""
        return await self._life.ready(timeout_s)

    async def count_tokens(
        self, messages: Sequence[Message], *, client: str = "", spec: ReplySpec = PLAIN
    ) -> int:
        """Return the prompt's length as vLLM counts it. Raises PromptRejected, EngineUnavailable."""
        self._refuse_when_over()
        while (upstream := self._upstream) is None:
            await self._life.ready()
        return await upstream.count_tokens(messages, client=client, spec=spec)

    def generate(self, request: Request) -> TimedStreamer:
        """Ask for a reply. Raises EngineUnavailable, and ValueError if a request of this id is open."""
        self._refuse_when_over()
        if self.has_open(request.request_id):
            raise ValueError(f"request {request.request_id!r} is still open")
        return self._waiting.submit(request) if self._upstream is None else self._upstream.generate(request)

    def statistics(self) -> EngineStatistics:
        """Return the numbers of the running vLLM; zeros before the first."""
        latest = self._upstream.statistics() if self._upstream else EngineStatistics()
        return msgspec.structs.replace(latest, queued=latest.queued + len(self._waiting))

    def running(self) -> AbstractAsyncContextManager[Self]:
        """Run vLLM inside the block. At its end none of its processes is left."""
        return running(self, "vLLM")

    async def run(self) -> None:
        """Keep a vLLM running until it fails for good, or until this is cancelled. Leaves no process behind."""
        try:
            while not self._life.status.state.is_final:
                delay_s = await self._live()
                await asyncio.sleep(delay_s)
        finally:
            self._life.stopped()
            self._waiting.fail(self._life.status.message or "The engine is stopped.")

    async def _live(self) -> float:
        """Run one vLLM to its end. Returns how long to wait before the next one."""
        key = secrets.token_hex(32)
        self._life.loading("starting vLLM", 0.0)
        with reserved_port() as port:
            try:
                process = await LaunchedProcess.start(command_of(self._options, port), key, self._on_line)
            except OSError as error:
                return self._handle_exit(ExitReason(f"vLLM could not be started: {error}.", by_itself=True))
            try:
                async with asyncio.TaskGroup() as tasks:
                    serving = tasks.create_task(self._serve(f"http://{HOST}:{port}/v1", key, process))
                    delay_s = self._handle_exit(await process.wait())
                    serving.cancel()
            finally:
                await process.stop()
        return delay_s

    async def _serve(self, url: str, key: str, process: LaunchedProcess) -> None:
        """Wait for a starting vLLM, serve requests by it as long as it answers, then kill it."""
        options = upstream_of(self._options, url, window=1)
        async with http_client(options, key) as client:
            while (window := await context_window(client, options)) is None:  # noqa: ASYNC110 - it has no event for us
                await asyncio.sleep(LOOK_S)
        options = msgspec.structs.replace(options, context_tokens=window)
        upstream = UpstreamEngine(options, key=key, on_change=self._changed)
        async with upstream.running():
            facts = await upstream.ready()
            self._upstream = upstream  # it is set exactly while our own state is `READY`
            self._life.loaded(facts)
            for request, stream in self._waiting.take():
                upstream.take_over(request, stream)
            await self._until_stalled(upstream)
            log.error("vLLM has not answered for %.0f s and is killed", self._stalled_s)
            process.kill()
            await asyncio.Event().wait()  # `_live` notices its end, and cancels this

    async def _until_stalled(self, upstream: UpstreamEngine) -> None:
        while True:
            while self._answers(upstream):
                await self._change.wait()
            try:
                async with asyncio.timeout(self._stalled_s):
                    while not self._answers(upstream):
                        await self._change.wait()
            except TimeoutError:
                return

    def _answers(self, upstream: UpstreamEngine) -> bool:
        return upstream.status.state is EngineState.READY

    def _changed(self) -> None:
        """Act on a new state of vLLM."""
        self._change.set()
        self._change = asyncio.Event()
        self._on_change()

    def _lose(self, why: str) -> None:
        """Keep the requests that were not sent to vLLM, and end the others with it."""
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            for request, stream in upstream.give_up_waiting():
                self._waiting.add(request, stream)
            upstream.failed(why)

    def _handle_exit(self, ending: ExitReason) -> float:
        """Note the end of a vLLM. Returns how long to wait before the next one."""
        self._lose(ending.words)
        if self._life.facts is None and ending.by_itself:
            self._life.not_usable(f"{ending.words} {self._advice(ending.words)}".rstrip())
            return 0.0
        delay_s = self._ledger.died(asyncio.get_running_loop().time())
        if delay_s is None:
            self._life.failed(f"vLLM crashed too often. {ending.words}")
            log.error("vLLM crashed too often, not restarted: %s", ending.words)
            return 0.0
        self._life.died(ending.words)
        log.warning("%s Restart in %.1f s.", ending.words, delay_s)
        return delay_s

    def _advice(self, words: str) -> str:
        return f"It needs an environment: {MAKE}." if "No module named" in words else ""

    def _on_line(self, raw: str) -> None:
        """Take a line of vLLM for the progress of its start, and for our log.

        While it serves, only the first lines of its warnings and errors are logged above `debug`. The lines behind
        them, such as the text of an exception, may quote what people wrote.
        """
        line = line_of(raw)
        if self._upstream is None and (latest := stage_of(line.text)) is not None:
            stage, share = latest
            self._life.loading(stage, max(share, self._life.status.progress))
        goes_on = line.place == self._place
        self._place = line.place or self._place
        hidden = self._upstream is not None and (goes_on or (line.level or 0) < logging.WARNING)
        level = logging.DEBUG if hidden or line.is_noise or line.level is None else line.level
        log.log(level, "%s: %s", NAME, line.text)

    def _refuse_when_over(self) -> None:
        try:
            self._life.refuse_when_over()
        except ModelNotUsable as error:
            raise EngineUnavailable(str(error)) from error
