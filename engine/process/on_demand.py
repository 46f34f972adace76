"""An engine whose process starts at a request, and ends after a while without one. Asleep it takes no memory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from engine.api import Engine, EngineState, EngineStatus
from engine.errors import EngineUnavailable
from engine.messages import EngineStatistics, Message, ModelFacts, Request
from engine.process.client import EngineClient
from engine.reply_spec import PLAIN, ReplySpec
from engine.streamer import Streamer

IDLE_S = 600.0
"""How long an engine keeps its process without requests."""
AGAIN_S = 30.0
"""How long it is not started again after a failure. Otherwise each request would start a process that can't run."""
ASLEEP = EngineStatus(EngineState.ASLEEP, "starts when it is asked")
STOPPED = EngineStatus(EngineState.STOPPED, "stopped", message="The engine is stopped.")

log = logging.getLogger(__name__)


class EngineOnDemand:
    """Serves by a process that runs only while it is needed. `facts` are known before it was ever started.

    Nothing runs before `run`: put it into a task group.
    """

    def __init__(
        self,
        make: Callable[[], EngineClient],
        facts: ModelFacts,
        *,
        idle_s: float = IDLE_S,
        again_s: float = AGAIN_S,
    ) -> None:
        """Take the factory of engines, which is called at each start, and the facts about the model.

        `idle_s`: seconds without a request after which the process ends. `again_s`: see `AGAIN_S`.
        """
        self._make = make
        self._facts = facts
        self._idle_s, self._pause_s = idle_s, again_s
        self._client: EngineClient | None = None
        self._woken = asyncio.Event()
        self._uses = 0
        self._used_at = 0.0
        self._failed: tuple[float, EngineStatus] | None = None
        self._is_over = False

    @property
    def status(self) -> EngineStatus:
        """The engine's state: ASLEEP while it needs no process."""
        if self._client is not None:
            return self._client.status
        if self._is_over:
            return STOPPED
        return ASLEEP if self._failed is None or self._again_s() <= 0 else self._failed[1]

    @property
    def facts(self) -> ModelFacts:
        """The model: the facts that its process told, or before its first start those that were given."""
        known = None if self._client is None else self._client.facts
        return known or self._facts

    @property
    def pid(self) -> int | None:
        """The id of the running process."""
        return None if self._client is None else self._client.pid

    @property
    def parts(self) -> tuple[Engine, ...]:
        """The engine itself, alone."""
        return (self,)

    async def ready(self, timeout_s: float | None = None) -> ModelFacts:
        """Wake it, and wait until requests are served. Raises ModelNotUsable, EngineUnavailable."""
        with self._awake() as client:
            return await client.ready(timeout_s)

    async def count_tokens(
        self, messages: Sequence[Message], *, client: str = "", spec: ReplySpec = PLAIN
    ) -> int:
        """Return the prompt's length in tokens. Raises PromptRejected, EngineUnavailable."""
        with self._awake() as engine:
            return await engine.count_tokens(messages, client=client, spec=spec)

    def generate(self, request: Request) -> Streamer:
        """Ask for a reply. Raises EngineUnavailable, and ValueError if a request of this id is open."""
        with self._awake() as engine:
            return engine.generate(request)

    def statistics(self) -> EngineStatistics:
        """Return the latest facts of the running process; zeros while there is none."""
        return EngineStatistics() if self._client is None else self._client.statistics()

    async def run(self) -> None:
        """Serve until this is cancelled. Leaves no process behind."""
        try:
            while True:
                await self._woken.wait()
                assert self._client is not None  # noqa: S101 - `_awake` made it before it set the event
                await self._serve(self._client)
        finally:
            self._is_over = True

    async def _serve(self, client: EngineClient) -> None:
        """Run an engine until it had no request for a while, or has failed for good."""
        running = asyncio.create_task(client.run(), name="engine on demand")
        try:
            while not running.done() and (left := self._left(client)) > 0:
                await asyncio.wait((running,), timeout=left)
            if running.done():
                running.result()
                self._failed = asyncio.get_running_loop().time(), client.status
                log.error("the engine failed: %s", client.status.message or client.status.state.value)
            else:
                log.info("the engine had no request for %g s and sleeps", self._idle_s)
            self._facts = client.facts or self._facts
            self._client = None  # a request from here on starts another one
            self._woken.clear()
        finally:
            running.cancel()
            await asyncio.wait((running,))

    @contextmanager
    def _awake(self) -> Iterator[EngineClient]:
        """Give the engine, which stays awake inside the block and for a while after."""
        if self._client is None:
            if self._is_over:
                raise EngineUnavailable("The engine is stopped.")
            if self._failed is not None and self._again_s() > 0:
                raise EngineUnavailable(self._failed[1].message or "The engine failed.")
            self._client = self._make()
            self._woken.set()
        self._uses += 1
        try:
            yield self._client
        finally:
            self._uses -= 1
            self._used_at = asyncio.get_running_loop().time()

    def _again_s(self) -> float:
        """Return how many seconds are left until it may be started after a failure."""
        if self._failed is None:
            return 0.0
        return self._failed[0] + self._pause_s - asyncio.get_running_loop().time()

    def _left(self, client: EngineClient) -> float:
        """Return how many seconds are left until it may end."""
        if self._uses or client.open_requests:
            self._used_at = asyncio.get_running_loop().time()
        return self._used_at + self._idle_s - asyncio.get_running_loop().time()
