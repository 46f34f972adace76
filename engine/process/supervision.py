"""The gateway's side of an engine process: start and stop, heartbeat, restarts and status."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from typing import cast

import msgspec

from engine.api import Engine, EngineState, EngineStatus, Runnable
from engine.errors import EngineUnavailable, ModelNotUsable
from engine.machine import EngineOptions, module_environment
from engine.messages import FromEngine, ModelFacts, Unpacker

_STDERR = 2
_LAST_WORDS_S = 1.0

log = logging.getLogger(__name__)


class _MessageReader(asyncio.Protocol):
    """The gateway's end of the socket. Passes each message on as it arrives."""

    def __init__(self, receive: Callable[[FromEngine], None]) -> None:
        self._receive = receive
        self._unpacker = Unpacker()
        self._decoder: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)
        self.ended = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        for body in self._unpacker.feed(data):
            self._receive(self._decoder.decode(body))

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            log.warning("connection to the engine's process lost: %s", exc)
        self.ended.set()


@dataclass(eq=False)
class ChildProcess:
    """A running process. Make one by `spawn`; `stop` it in any case."""

    _process: asyncio.subprocess.Process
    _transport: asyncio.Transport
    _line: _MessageReader

    @classmethod
    async def spawn(cls, options: EngineOptions, receive: Callable[[FromEngine], None]) -> ChildProcess:
        """Start a process. `receive` is called for each of its messages, and must not raise."""
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with theirs:
            transport, line = await loop.create_unix_connection(lambda: _MessageReader(receive), sock=ours)
            try:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-m", __package__),
                    *(str(theirs.fileno()), msgspec.json.encode(options).decode()),
                    pass_fds=[theirs.fileno()],
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=_STDERR,
                    env=module_environment(),
                )
            except BaseException:
                transport.abort()
                raise
        return cls(process, transport, line)

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def send(self, packed: bytes) -> None:
        """Send a packed message. Never waits; nothing happens once the process is gone."""
        if not self._transport.is_closing():  # the connection breaks before the process's end is known
            self._transport.write(packed)

    async def wait(self) -> str:
        """Wait until the process ends by itself, and its last messages have been received. Returns how it ended."""
        code = await self._process.wait()
        with suppress(TimeoutError):  # if a child of the process keeps the connection open
            async with asyncio.timeout(_LAST_WORDS_S):
                await self._line.ended.wait()
        if code >= 0:
            return f"The engine's process ended with exit code {code}."
        return f"The engine's process was ended by {signal.Signals(-code).name}."

    def kill(self) -> None:
        """Kill the process."""
        with suppress(ProcessLookupError):
            self._process.kill()

    async def stop(self, deadline_s: float) -> None:
        """Ask the process to end, and kill it after `deadline_s`. It has ended when this returns or is cancelled."""
        try:
            await terminate_process(self._process, deadline_s)
        finally:
            self.kill()
            self._transport.abort()
        await self._process.wait()


async def terminate_process(process: asyncio.subprocess.Process, deadline_s: float) -> None:
    """Send SIGTERM, and wait for the end for `deadline_s`; after that the caller has to kill it."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.terminate()
    with suppress(TimeoutError):
        async with asyncio.timeout(deadline_s):
            await process.wait()


STEP_TIMEOUT_S = 300.0
"""A step takes some 60 ms; the first ones of a kind may compile for minutes."""


class HeartbeatOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A ready process that sends nothing, pongs included, for `misses` intervals in a row is stalled.

    So is one that answers while one step takes longer than `step_timeout_s`: its device hangs.
    """

    interval_s: float = 5.0
    misses: int = 12
    step_timeout_s: float = STEP_TIMEOUT_S


class Heartbeat:
    """Counts one process's intervals of silence, and those without progress of its step loop.

    Intervals are counted, not seconds: if the gateway itself stalled, only one is missed.
    """

    def __init__(self, options: HeartbeatOptions) -> None:
        """Take the bounds."""
        self._options = options
        self._most_standing = ceil(options.step_timeout_s / options.interval_s)
        self._silent = 0
        self._standing = 0
        self._turns: int | None = None

    def message_received(self) -> None:
        """Note any message of the process."""
        self._silent = 0

    def answered(self, *, busy: bool, turns: int) -> None:
        """Note a pong, with the step loop's progress."""
        stands = busy and turns == self._turns
        self._standing = self._standing + 1 if stands else 0
        self._turns = turns

    def beat(self) -> str | None:
        """Note the end of an interval; return why the process counts as stalled, or None."""
        self._silent += 1
        if self._silent > self._options.misses:
            return "The engine's process was stalled: it answered nothing."
        if self._standing > self._most_standing:
            return f"A step of the engine did not end within {self._options.step_timeout_s:g} s."
        return None


class RestartPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """After the first death in `window_s` the wait is `first_delay_s`; it doubles with each further one.

    `deaths` within `window_s` are too many. `jitter`: the largest share by which a wait is shortened at random.
    """

    first_delay_s: float = 0.2
    longest_delay_s: float = 30.0
    deaths: int = 5
    window_s: float = 600.0
    jitter: float = 0.25


class RestartLedger:
    """Remembers the deaths of one engine."""

    def __init__(self, policy: RestartPolicy, chance: Callable[[], float]) -> None:
        """Take the policy, and a source of numbers from 0 to 1."""
        self._policy = policy
        self._chance = chance
        self._deaths: deque[float] = deque()

    def died(self, now: float) -> float | None:
        """Note a death at `now`, in seconds; return how long to wait, or None if there were too many."""
        policy = self._policy
        self._deaths.append(now)
        while self._deaths[0] <= now - policy.window_s:
            self._deaths.popleft()
        if len(self._deaths) >= policy.deaths:
            return None
        delay = min(policy.first_delay_s * 2.0 ** (len(self._deaths) - 1), policy.longest_delay_s)
        return delay * (1.0 - policy.jitter * self._chance())


class Lifecycle:
    """Records an engine's state, for callers that read it or wait for it. All but `ready` is synchronous."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        """`on_change` is called whenever another state was entered, and must not raise."""
        self._on_change = on_change
        self.status = EngineStatus(EngineState.LOADING, "starting")
        self.facts: ModelFacts | None = None
        self._is_not_usable = False
        self._settled = asyncio.Event()

    def loading(self, stage: str, progress: float, message: str | None = None) -> None:
        """Note the progress of a start, the first one or a later one. `message`, if given, replaces the last one."""
        old = self.status
        self.status = EngineStatus(old.state, stage, progress, message or old.message, old.restarts)

    def loaded(self, facts: ModelFacts) -> None:
        """Note that requests are served from now on."""
        self.facts = facts
        self.status = EngineStatus(EngineState.READY, "ready", 1.0, None, self.status.restarts)
        self._settled.set()
        self._on_change()

    def asleep(self) -> None:
        """Note that no process runs until the next request."""
        self.status = EngineStatus(
            EngineState.ASLEEP, "starts when it is asked", restarts=self.status.restarts
        )
        self._settled.clear()
        self._on_change()

    def woken(self) -> None:
        """Note that a request needs a process."""
        self.status = EngineStatus(EngineState.LOADING, "starting", restarts=self.status.restarts)
        self._on_change()

    def stalled(self, why: str) -> None:
        """Note that a process no longer serves and is being ended; its death is noted separately."""
        self._restarting(why, self.status.restarts)

    def died(self, why: str) -> None:
        """Note a death that is followed by a restart."""
        self._restarting(why, self.status.restarts + 1)

    def crashed(self, name: str, why: str, ledger: RestartLedger) -> float:
        """Note a death; return how long to wait before the next start. Too many deaths are a failure for good."""
        delay_s = ledger.died(asyncio.get_running_loop().time())
        if delay_s is None:
            log.error("%s crashed too often, not restarted: %s", name, why)
            self.failed(f"{name} crashed too often. {why}")
            return 0.0
        log.warning("%s Restart in %.1f s.", why, delay_s)
        self.died(why)
        return delay_s

    def failed(self, why: str) -> None:
        """Note that the engine has failed for good."""
        self._end(EngineState.FAILED, why)

    def not_usable(self, why: str) -> None:
        """Note that the model can't be served."""
        self._is_not_usable = True
        self._end(EngineState.FAILED, why)

    def stopped(self) -> None:
        """Note that the engine was stopped, unless it had failed before."""
        if not self.status.state.is_final:
            self._end(EngineState.STOPPED, "The engine is stopped.")

    def refuse_when_over(self) -> None:
        """Raise EngineUnavailable if no request will be served any more."""
        if self.status.state.is_final:
            raise EngineUnavailable(self.status.message)

    async def ready(self, timeout_s: float | None = None) -> ModelFacts:
        """Wait until requests are served; see `Engine.ready`."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.status.state is not EngineState.READY:
                    if self._is_not_usable:
                        raise ModelNotUsable(self.status.message)
                    self.refuse_when_over()
                    await self._settled.wait()
        except TimeoutError:
            raise EngineUnavailable(f"The engine is not ready yet: {self.status.stage}.") from None
        assert self.facts is not None  # noqa: S101 - READY implies it
        return self.facts

    def _restarting(self, why: str, restarts: int) -> None:
        state = EngineState.LOADING if self.facts is None else EngineState.RESTARTING
        self.status = EngineStatus(state, "restarting", 0.0, why, restarts)
        self._settled.clear()
        self._on_change()

    def _end(self, state: EngineState, why: str) -> None:
        self.status = EngineStatus(state, state.value, 0.0, why, self.status.restarts)
        self._settled.set()
        self._on_change()


class SingleEngine(Runnable):
    """An engine that is not made of others, with the state that it records."""

    _life: Lifecycle

    @property
    def status(self) -> EngineStatus:
        """The engine's state."""
        return self._life.status

    @property
    def facts(self) -> ModelFacts | None:
        """Facts about the model, once it was loaded; they stay known while the engine restarts."""
        return self._life.facts

    @property
    def parts(self) -> tuple[Engine, ...]:
        """The engine itself, alone."""
        return (cast("Engine", self),)

    async def ready(self, timeout_s: float | None = None) -> ModelFacts:
        """Wait until requests are served. Raises ModelNotUsable, EngineUnavailable."""
        return await self._life.ready(timeout_s)
