"""The gateway's `Engine`: one supervised engine process and its streams, started at once or at its first request.

Imports neither torch nor transformers.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import assert_never

from engine.api import EngineState, Streamer
from engine.errors import EngineLost, EngineUnavailable, PromptRejected
from engine.machine import EngineOptions
from engine.messages import (
    PLAIN,
    Cancel,
    CancelCount,
    CountRequest,
    CountResult,
    EngineStatistics,
    Finished,
    FinishReason,
    FromEngine,
    LoadFailed,
    Loading,
    Message,
    ModelFacts,
    Output,
    Ping,
    Pong,
    ReplySpec,
    Request,
    StepOutputs,
    pack,
)
from engine.process.supervision import (
    ChildProcess,
    Heartbeat,
    HeartbeatOptions,
    Lifecycle,
    RestartLedger,
    RestartPolicy,
    SingleEngine,
)

IDLE_S = 600.0
"""How long an engine on demand keeps its process without requests."""

log = logging.getLogger(__name__)


class EngineClient(SingleEngine):
    """Serves requests by a separate process, which is restarted when it dies.

    Requests wait while no process runs. Those that a process has are lost with it; counts are requested again from the next one.
    An engine on demand has a process only while it is needed.
    """

    def __init__(
        self,
        options: EngineOptions,
        *,
        restarts: RestartPolicy | None = None,
        heartbeat: HeartbeatOptions | None = None,
        stop_deadline_s: float = 5.0,
        on_change: Callable[[], None] = lambda: None,
        on_demand: ModelFacts | None = None,
        idle_s: float = IDLE_S,
    ) -> None:
        """Take the options of the process and of its supervision.

        `on_change` is called when the engine has entered another state, and must not raise. `on_demand`: the facts about
        the model. With them, the process starts at the first request, and ends after `idle_s` seconds without one.
        """
        self._options = options
        self._stop_deadline_s = stop_deadline_s
        self._beats = heartbeat or HeartbeatOptions()
        self._ledger = RestartLedger(restarts or RestartPolicy(), random.random)
        self._life = Lifecycle(on_change)
        self._send: Send | None = None
        self._waiting: dict[str, tuple[Streamer, bytes]] = {}
        self._sent: dict[str, Streamer] = {}
        self._counts: dict[int, tuple[asyncio.Future[int], bytes]] = {}
        self._statistics = EngineStatistics()
        self._child: ChildProcess | None = None
        self._heart = Heartbeat(self._beats)
        self._known_facts = on_demand
        self._idle_s = idle_s
        self._used_at = 0.0
        self._is_idle = False
        self._woken = asyncio.Event()
        if on_demand is None:
            self._woken.set()
        else:
            self._life.asleep()

    @property
    def facts(self) -> ModelFacts | None:
        """Facts about the model: those that its process reported, or else those that were given."""
        return self._life.facts or self._known_facts

    @property
    def pid(self) -> int | None:
        """The id of the running process."""
        return self._child.pid if self._child else None

    @property
    def open_requests(self) -> int:
        """The number of open requests."""
        return len(self._sent) + len(self._waiting)

    def has_open(self, request_id: str) -> bool:
        """Return whether a request with this id is open."""
        return request_id in self._sent or request_id in self._waiting

    async def ready(self, timeout_s: float | None = None) -> ModelFacts:
        """Wait until requests are served. Raises ModelNotUsable, EngineUnavailable."""
        self._wake()
        return await self._life.ready(timeout_s)

    async def count_tokens(
        self, messages: Sequence[Message], *, client: str = "", spec: ReplySpec = PLAIN
    ) -> int:
        """Return the prompt's length in tokens. Raises PromptRejected, EngineUnavailable."""
        self._life.refuse_when_over()
        # An image's tokens are known by its size, so its bytes stay here.
        unseen = [message.without_data() if message.images else message for message in messages]
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        count_id = next(_COUNT_IDS)
        try:
            packed = pack(CountRequest(count_id, tuple(unseen), client, spec))
        except UnicodeEncodeError as error:
            raise PromptRejected(f"The messages are not text: {error}") from error
        self._submit_count(count_id, future, packed)
        try:
            return await future
        finally:
            if self._counts.pop(count_id, None) is not None and self._send is not None:
                self._send(pack(CancelCount(count_id)))

    def generate(self, request: Request) -> Streamer:
        """Ask for a reply. Raises EngineUnavailable, and ValueError if a request with this id is open."""
        self._life.refuse_when_over()
        request_id = request.request_id
        if self.has_open(request_id):
            raise ValueError(f"request {request_id!r} is still open")
        stream = Streamer(request_id, self._cancel)
        try:
            packed = pack(request)
        except UnicodeEncodeError as error:
            stream.put_nowait(
                _ended(request_id, FinishReason.ERROR, error=f"The messages are not text: {error}")
            )
            return stream
        self._submit(request_id, stream, packed)
        return stream

    def move_waiting_to(self, other: EngineClient) -> None:
        """Give the requests that wait for a process, and all counts, to another engine. Requests that a process has stay."""
        waiting, self._waiting = self._waiting, {}
        for request_id, (stream, packed) in waiting.items():
            stream.redirect(other._cancel)
            other._submit(request_id, stream, packed)
        counts, self._counts = self._counts, {}
        for count_id, (future, packed) in counts.items():
            other._submit_count(count_id, future, packed)

    def statistics(self) -> EngineStatistics:
        """Return the latest statistics of the running process; zeros before the first."""
        return self._statistics

    async def run(self) -> None:
        """Keep a process running until it has failed for good, or this is cancelled. Leaves no process behind."""
        try:
            while not self._life.status.state.is_final:
                await self._woken.wait()
                delay_s = self._handle_exit(await self._live())
                await asyncio.sleep(delay_s)
        finally:
            self._life.stopped()
            self._close(self._life.status.message or "The engine is stopped.")

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
        was_idle, self._is_idle = self._is_idle, False
        if was_idle or self._life.status.state.is_final:
            return 0.0
        delay_s = self._life.crashed("The engine", ending, self._ledger)
        if not self._life.status.state.is_final:
            self._disconnect(ending)
        return delay_s

    async def _watch(self, child: ChildProcess) -> str:
        """Ping the process, and end it if it stalls or is not needed; return why. Silence during loading is no stall."""
        for number in count():
            await asyncio.sleep(self._beats.interval_s)
            if self._life.status.state is not EngineState.READY:
                continue
            if self._put_to_sleep():
                await child.stop(self._stop_deadline_s)
                return f"The engine had no request for {self._idle_s:g} s."
            if trouble := self._heart.beat():
                log.error("the engine's process is ended: %s", trouble)
                child.kill()
                # a process that waits for a broken driver may outlive the kill; no turn waits for its end
                self._life.stalled(trouble)
                self._disconnect(trouble)
                return trouble
            child.send(pack(Ping(number)))
        raise AssertionError("numbers have no end")

    def _put_to_sleep(self) -> bool:
        """Return whether a process on demand is not needed any more. If so, requests wait for the next one from now on."""
        now = time.monotonic()
        if self._known_facts is None or self.open_requests or self._counts:
            self._used_at = now
        if now < self._used_at + self._idle_s:
            return False
        log.info("the engine had no request for %g s and sleeps", self._idle_s)
        self._send, self._is_idle = None, True
        self._woken.clear()
        self._life.asleep()
        return True

    def _wake(self) -> None:
        """Start the process of a sleeping engine."""
        self._used_at = time.monotonic()
        if self._life.status.state is EngineState.ASLEEP:
            self._life.woken()
            self._woken.set()

    def _receive(self, message: FromEngine) -> None:
        self._heart.message_received()
        match message:
            case StepOutputs():
                self._put(message.outputs, message.made_at)
            case CountResult():
                self._counted(message)
            case EngineStatistics():
                self._statistics = message
            case Pong():
                self._heart.answered(busy=message.busy, turns=message.turns)
            case Loading():
                self._life.loading(message.stage, message.progress)
            case ModelFacts():
                self._life.loaded(message)
                if self._child is not None:
                    self._connect(self._child.send)
            case LoadFailed() if self._life.facts is None:
                self._life.not_usable(message.message)
            case LoadFailed():  # a model that was served before is restarted as after any other death
                log.error("reloading the model failed: %s", message.message)
            case _:
                assert_never(message)

    def _connect(self, send: Send) -> None:
        """Send a ready process everything that waited for one."""
        self._send = send
        for request_id, (stream, packed) in self._waiting.items():
            self._sent[request_id] = stream
            send(packed)
        self._waiting.clear()
        for _, packed in self._counts.values():
            send(packed)

    def _disconnect(self, why: str) -> None:
        """End the streams of requests that a dead process had."""
        self._send = None
        lost, self._sent = self._sent, {}
        for stream in lost.values():
            stream.fail(EngineLost(why))

    def _close(self, why: str) -> None:
        """End everything: there will be no further process."""
        self._disconnect(why)
        waiting, self._waiting = self._waiting, {}
        for stream, _ in waiting.values():
            stream.fail(EngineLost(why))
        counts, self._counts = self._counts, {}
        for future, _ in counts.values():
            if not future.done():
                future.set_exception(EngineUnavailable(why))

    def _put(self, outputs: Sequence[Output], made_at: float) -> None:
        """Hand the outputs of a step to their streams. `made_at`: see `StepOutputs`."""
        for output in outputs:
            stream = self._sent.get(output.request_id)
            if stream is None:
                continue
            if isinstance(output, Finished):
                del self._sent[output.request_id]
            stream.put_nowait(output, made_at)

    def _counted(self, counted: CountResult) -> None:
        """Hand a prompt's length, or its rejection, to the caller, if one still waits."""
        future, _ = self._counts.pop(counted.count_id, (None, b""))
        if future is None or future.done():
            return
        if counted.error is None:
            future.set_result(counted.tokens)
        else:
            future.set_exception(PromptRejected(counted.error, field=counted.field))

    def _submit(self, request_id: str, stream: Streamer, packed: bytes) -> None:
        self._wake()
        if self._send is None:
            self._waiting[request_id] = (stream, packed)
        else:
            self._sent[request_id] = stream
            self._send(packed)

    def _submit_count(self, count_id: int, future: asyncio.Future[int], packed: bytes) -> None:
        self._wake()
        self._counts[count_id] = future, packed
        if self._send is not None:
            self._send(packed)

    def _cancel(self, request_id: str) -> None:
        if self._send is not None:
            self._send(pack(Cancel(request_id)))
        elif request_id in self._waiting:
            stream, _ = self._waiting.pop(request_id)
            stream.put_nowait(_ended(request_id, FinishReason.CANCELLED, steps_after=0))


Send = Callable[[bytes], None]

_COUNT_IDS = count()
"""The ids of counts, the same for all engines: a count may be moved to another one."""


def _ended(
    request_id: str, reason: FinishReason, *, steps_after: int | None = None, error: str | None = None
) -> Finished:
    return Finished(request_id, reason, 0, 0, 0, steps_after, error)
