"""The gateway's `Engine`: one supervised engine process, and its streams. Imports neither torch nor transformers."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import assert_never

from engine.api import Engine, EngineState, EngineStatus
from engine.errors import EngineUnavailable, ModelNotUsable
from engine.messages import (
    CountResult,
    EngineStatistics,
    FromEngine,
    LoadFailed,
    Loading,
    Message,
    ModelFacts,
    Ping,
    Pong,
    Request,
    StepOutputs,
)
from engine.options import EngineOptions
from engine.process.channel import pack
from engine.process.child import ChildProcess
from engine.process.pending_requests import PendingRequests
from engine.process.supervision import Heartbeat, HeartbeatOptions, Lifecycle, RestartLedger, RestartPolicy
from engine.reply_spec import PLAIN, ReplySpec
from engine.streamer import Streamer

log = logging.getLogger(__name__)


class EngineClient:
    """Serves requests by a separate process, which is restarted when it dies.

    Nothing runs before `run`: put it into a task group, or use `running`.
    """

    def __init__(
        self,
        options: EngineOptions,
        *,
        restarts: RestartPolicy | None = None,
        heartbeat: HeartbeatOptions | None = None,
        stop_deadline_s: float = 5.0,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """Take the options of the process and of its supervision.

        `on_change` is called when the engine has entered another state, and must not raise.
        """
        self._options = options
        self._stop_deadline_s = stop_deadline_s
        self._beats = heartbeat or HeartbeatOptions()
        self._ledger = RestartLedger(restarts or RestartPolicy(), random.random)
        self._life = Lifecycle(on_change)
        self._pending = PendingRequests()
        self._statistics = EngineStatistics()
        self._child: ChildProcess | None = None
        self._heart = Heartbeat(self._beats)

    @property
    def status(self) -> EngineStatus:
        """The engine's state."""
        return self._life.status

    @property
    def facts(self) -> ModelFacts | None:
        """The model, once it was loaded; stays known while the engine restarts."""
        return self._life.facts

    @property
    def pid(self) -> int | None:
        """The id of the running process."""
        return self._child.pid if self._child else None

    @property
    def open_requests(self) -> int:
        """The number of open requests."""
        return self._pending.open

    def has_open(self, request_id: str) -> bool:
        """Return whether a request of this id is open."""
        return request_id in self._pending

    @property
    def parts(self) -> tuple[Engine, ...]:
        """The engine itself, alone."""
        return (self,)

    async def ready(self, timeout_s: float | None = None) -> ModelFacts:
        """Wait until requests are served. Raises ModelNotUsable, EngineUnavailable."""
        return await self._life.ready(timeout_s)

    async def count_tokens(
        self, messages: Sequence[Message], *, client: str = "", spec: ReplySpec = PLAIN
    ) -> int:
        """Return the prompt's length in tokens. Raises PromptRejected, EngineUnavailable."""
        self._refuse_when_over()
        # An image's tokens are known by its size, so its bytes stay here.
        unseen = [message.without_data() if message.images else message for message in messages]
        return await self._pending.count(unseen, client, spec)

    def generate(self, request: Request) -> Streamer:
        """Ask for a reply. Raises EngineUnavailable, and ValueError if a request of this id is open."""
        self._refuse_when_over()
        return self._pending.request(request)

    def move_waiting_to(self, other: EngineClient) -> None:
        """Give the requests that wait for a process to another engine."""
        self._pending.move_waiting_to(other._pending)

    def statistics(self) -> EngineStatistics:
        """Return the latest numbers of the running process; zeros before the first."""
        return self._statistics

    @asynccontextmanager
    async def running(self) -> AsyncIterator[EngineClient]:
        """Run the engine inside the block, and stop it at the end."""
        async with asyncio.TaskGroup() as tasks:
            supervision = tasks.create_task(self.run(), name="engine supervision")
            try:
                yield self
            finally:
                supervision.cancel()

    async def run(self) -> None:
        """Keep a process running until it has failed for good, or this is cancelled. Leaves no process behind."""
        try:
            while not self._life.status.state.is_final:
                delay_s = self._handle_exit(await self._live())
                await asyncio.sleep(delay_s)
        finally:
            self._life.stopped()
            self._pending.close(self._life.status.message or "The engine is stopped.")

    async def _live(self) -> str:
        """Run one process to its end. Returns how it ended."""
        try:
            child = await ChildProcess.spawn(self._options, self._receive)
        except OSError as error:
            return f"The engine's process could not be started: {error}."
        self._child, self._heart = child, Heartbeat(self._beats)
        try:
            async with asyncio.TaskGroup() as tasks:
                heartbeat = tasks.create_task(self._watch(child), name="engine heartbeat")
                ending = await child.wait()
                if heartbeat.done():
                    ending = f"{heartbeat.result()} {ending}"
                heartbeat.cancel()
        finally:
            self._child = None
            await child.stop(self._stop_deadline_s)
        return ending

    def _handle_exit(self, ending: str) -> float:
        """Handle the end of a process; return how long to wait before the next one."""
        self._statistics = EngineStatistics()
        if self._life.status.state.is_final:
            return 0.0
        delay_s = self._ledger.died(asyncio.get_running_loop().time())
        if delay_s is None:
            self._life.failed(f"The engine crashed too often. {ending}")
            log.error("engine crashed too often, not restarted: %s", ending)
            return 0.0
        self._life.died(ending)
        self._pending.disconnect(ending)
        log.warning("%s Restart in %.1f s.", ending, delay_s)
        return delay_s

    async def _watch(self, child: ChildProcess) -> str:
        """Ping the process, and end it if it stalls; return why. Silence during loading is no stall."""
        for number in count():
            await asyncio.sleep(self._beats.interval_s)
            if self._life.status.state is not EngineState.READY:
                continue
            if trouble := self._heart.beat():
                log.error("the engine's process is ended: %s", trouble)
                child.kill()
                # a process that waits for a broken driver may outlive even that; no turn waits for its end
                self._life.stalled(trouble)
                self._pending.disconnect(trouble)
                return trouble
            child.send(pack(Ping(number)))
        raise AssertionError("numbers have no end")

    def _receive(self, message: FromEngine) -> None:
        self._heart.message_received()
        match message:
            case StepOutputs():
                self._pending.put(message.outputs, message.made_at)
            case CountResult():
                self._pending.counted(message)
            case EngineStatistics():
                self._statistics = message
            case Pong():
                self._heart.answered(busy=message.busy, turns=message.turns)
            case Loading():
                self._life.loading(message.stage, message.progress)
            case ModelFacts():
                self._loaded(message)
            case LoadFailed():
                self._load_failed(message.message)
            case _:
                assert_never(message)

    def _loaded(self, facts: ModelFacts) -> None:
        self._life.loaded(facts)
        if self._child is not None:
            self._pending.connect(self._child.send)

    def _load_failed(self, why: str) -> None:
        """Give up if it is the first start. A model that was served before is restarted as after any other death."""
        if self._life.facts is None:
            self._life.not_usable(why)
        else:
            log.error("reloading the model failed: %s", why)

    def _refuse_when_over(self) -> None:
        try:
            self._life.refuse_when_over()
        except ModelNotUsable as error:
            raise EngineUnavailable(str(error)) from error
