"""An engine's interface for the layers above, and the stream of a reply's outputs. Imports neither torch nor transformers."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from time import monotonic
from typing import Protocol, Self, TypeVar, assert_never

import msgspec

from engine.errors import EngineError
from engine.messages import (
    PLAIN,
    Chunk,
    EngineStatistics,
    Finished,
    Message,
    ModelFacts,
    Output,
    Params,
    Prefilling,
    Queued,
    Reasoning,
    ReplySpec,
    Request,
    Retried,
    Started,
    ToolCallOutput,
)


class EngineState(StrEnum):
    """The state of an engine."""

    READY = "ready"  # the closest to serving comes first
    RESTARTING = "restarting"
    """The process died and is being restarted. Requests wait for it."""
    LOADING = "loading"
    ASLEEP = "asleep"
    """No process runs: the first request starts one."""
    FAILED = "failed"
    """It crashed too often, or the model is not usable. It is not restarted."""
    STOPPED = "stopped"

    @property
    def is_final(self) -> bool:
        """Whether no request will be served any more."""
        return self in {EngineState.FAILED, EngineState.STOPPED}

    @property
    def is_up(self) -> bool:
        """Whether nothing is wrong: requests are served at once, or after the start that they trigger."""
        return self in {EngineState.READY, EngineState.ASLEEP}


class EngineStatus(msgspec.Struct, frozen=True):
    """The status of an engine, for `/readyz` and the terminal.

    `stage` is for people; `progress` is the loaded share, from 0 to 1. `message` says why the engine is not ready, if known.
    """

    state: EngineState
    stage: str = ""
    progress: float = 0.0
    message: str | None = None
    restarts: int = 0


class Engine(Protocol):
    """Generates replies."""

    @property
    def status(self) -> EngineStatus:
        """The engine's state."""
        ...

    @property
    def facts(self) -> ModelFacts | None:
        """Facts about the model, once it was loaded; they stay known while the engine restarts."""
        ...

    @property
    def parts(self) -> tuple[Engine, ...]:
        """The engines behind this interface, in a fixed order; the engine itself if there are no others."""
        ...

    async def ready(self, timeout_s: float | None = None) -> ModelFacts:
        """Wait until requests are served.

        Raises ModelNotUsable if the model can't be served with these settings, EngineUnavailable if the engine has failed, is
        stopped, or is not ready in time.
        """
        ...

    async def count_tokens(
        self, messages: Sequence[Message], *, client: str = "", spec: ReplySpec = PLAIN
    ) -> int:
        """Return the prompt's length in tokens, counted up to a little beyond the window. Waits out loads and restarts.

        `client`, `spec`: as in `Request`. Cancelling the wait cancels the count.

        Raises EngineUnavailable, and PromptRejected for messages that the model's template refuses or a grammar that can't be
        compiled.
        """
        ...

    def generate(self, request: Request) -> Streamer:
        """Ask for a reply. A request made while the engine loads or restarts waits for it.

        Raises EngineUnavailable if the engine has failed or is stopped, ValueError if a request with this id is still open.
        """
        ...

    def statistics(self) -> EngineStatistics:
        """Return the engine's latest statistics; zeros before the first."""
        ...

    async def run(self) -> None:
        """Serve until this is cancelled, or the engine has failed for good. Leaves nothing behind."""
        ...


_NEUTRAL: dict[str, object] = {
    "top_k": 0,
    "repetition_penalty": 1.0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "logit_bias": (),
    "min_tokens": 0,
    "ignore_eos": False,
    "special_tokens": False,
}
"""Parameters' values that change nothing, so every engine can follow them."""


def not_served(params: Params, facts: ModelFacts) -> str | None:
    """Return the first field of `params` that the engine can't follow, or None."""
    for name in facts.lacks:
        value = getattr(params, name)
        if value is not None and value != _NEUTRAL.get(name):
            return name
    return None


def has_feature(facts: ModelFacts, feature: str, part: str) -> bool:
    """Return whether an engine has a feature, or this part of it: some have only `tools.auto`, or `format.regex`."""
    return feature in facts.features or f"{feature}.{part}" in facts.features


def spec_not_served(spec: ReplySpec, facts: ModelFacts) -> str | None:
    """Return the field of the first part of a spec that the engine can't follow, or None.

    Every engine accepts `reasoning`: most models without a switch for it do not reason, and an effort is a hint.
    """
    form = "" if spec.format is None else spec.format.__struct_config__.tag
    requested = (
        ("tools", "tools", spec.tool_choice, bool(spec.shown_tools)),
        ("format", "format", str(form), spec.format is not None),
        ("template", "template", "", bool(spec.template)),
        ("continues", "continue", "", spec.continues),
        ("target", "translate", "", spec.translation is not None),
    )
    lacking = (
        field
        for field, feature, part, is_requested in requested
        if is_requested and not has_feature(facts, feature, part)
    )
    return next(lacking, None)


def messages_not_served(messages: Sequence[Message], facts: ModelFacts) -> str | None:
    """Return the name of the part of messages that the model can't read, or None."""
    if "images" not in facts.features and any(message.images for message in messages):
        return "images"
    if has_feature(facts, "tools", "auto"):
        return None
    if any(message.calls for message in messages):
        return "tool_calls"
    return "role" if any(message.role == "tool" for message in messages) else None


class Runnable(ABC):
    """Serves as long as `run` runs: start `run` in a task group, or use `running`."""

    @abstractmethod
    async def run(self) -> None:
        """Serve until this is cancelled, or can't continue."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Keep `run` running inside the block, and cancel it at the end."""
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(self.run(), name=type(self).__name__)
            try:
                yield self
            finally:
                serving.cancel()


class Texts(msgspec.Struct, frozen=True):
    """The texts to embed, a vector for each. `client`: as in `Request`.

    `dimensions`: the length of the vectors; None: the model's own. `packed`: as base64 of little-endian 32-bit floats, instead
    of a list of numbers.
    """

    texts: tuple[str, ...]
    client: str = ""
    dimensions: int | None = None
    packed: bool = False


class Vectors(msgspec.Struct, frozen=True):
    """The vectors as JSON, in the order of their texts. `tokens`: how many the texts have; 0 if not counted."""

    vectors: tuple[msgspec.Raw, ...]
    tokens: int


MERGED_CHARS = 16 * 1024
"""The most characters of merged chunks; in UTF-8 at most 64 KiB."""


Piece = Chunk | Reasoning | ToolCallOutput
"""The pieces of a reply."""

T = TypeVar("T", Chunk, Reasoning)


@dataclass(slots=True, eq=False)
class DeliveryTimes:
    """How many pieces readers took, and how long the pieces had waited."""

    count: int = 0
    seconds: float = 0.0

    def note(self, seconds: float) -> None:
        """Count one piece, which waited `seconds`."""
        self.count += 1
        self.seconds += seconds


class Streamer:
    """The outputs of one request, in order; then the iteration ends. One reader iterates, and may cancel.

    They are `Queued`*, `Started`, `Prefilling`*, then `Reasoning`, `Chunk` and `ToolCallOutput` in any order, and
    `Finished`. Any but the last may be missing. A preempted request is queued and started again; so is one that failed at
    an upstream before the first text (`Retried` says so). Chunks merge while their reader is late. A waiting `Queued` or
    `Prefilling` is superseded by the next output. After the outputs so far, iterating raises `EngineLost` if the engine's
    process died, and `EngineUnavailable` if an upstream refused the request.

    The engine's side calls `put_nowait` and `fail`.

    `deadline`: the loop's time by which an upstream's reply must have ended, retries included; None: none. `tried`: the
    numbers of the upstreams that failed before the reply's first text.
    """

    def __init__(
        self, request_id: str, on_cancel: Callable[[str], None], deliveries: DeliveryTimes | None = None
    ) -> None:
        """Make a stream. `on_cancel` is called with `request_id` at the first cancel of an open request.

        `deliveries`: records how long pieces waited for their reader; merged ones count from the oldest.
        """
        self.request_id = request_id
        self.deadline: float | None = None
        self.tried: set[int] = set()
        self._on_cancel = on_cancel
        self._deliveries = deliveries
        self._early: list[Retried | Started] = []  # come before the waiting text
        self._pieces: deque[tuple[Piece, float]] = deque()  # and when they were made
        self._last: Queued | Prefilling | Finished | None = None
        self.made_at: float | None = None
        """When the oldest token in the last taken piece was made, by `time.monotonic`; None before the first piece."""
        self._wakeup: asyncio.Future[None] | None = None  # the reader waits for it
        self._closed = False
        self._cancelled = False
        self._error: EngineError | None = None

    @property
    def closed(self) -> bool:
        """Whether the engine has ended this stream. Its last outputs may still wait for the reader."""
        return self._closed

    def redirect(self, on_cancel: Callable[[str], None], deliveries: DeliveryTimes | None = None) -> None:
        """Redirect cancels and measurements: another engine answers from now on."""
        self._on_cancel = on_cancel
        self._deliveries = deliveries

    def put_nowait(self, output: Output, made_at: float | None = None) -> None:
        """Hand an output to the reader; after the end it is dropped. `made_at`: by `time.monotonic`; None: now."""
        if self._closed:
            return
        self._closed = isinstance(output, Finished)
        match output:
            case Chunk() | Reasoning() | ToolCallOutput():
                self._pieces.append((output, monotonic() if made_at is None else made_at))
                self._last = None
            case Started():
                # repeated after a preemption: the reader may get it before text that waits
                self._early = [*(one for one in self._early if isinstance(one, Retried)), output]
                self._last = None
            case Retried():
                self._early, self._last = [output], None
            case Queued() | Prefilling() | Finished():
                self._last = output
            case _:
                assert_never(output)
        self._wake()

    def fail(self, error: EngineError) -> None:
        """End the stream with this error, which is raised after the outputs so far."""
        if not self._closed:
            self._closed = True
            self._error = error
            self._wake()

    def get_nowait(self) -> Output | None:
        """Take the next output; None if the reader has to wait.

        After the end every call raises StopAsyncIteration, or the error given to `fail`.
        """
        output = self._take()
        if output is None and self._error is not None:
            raise self._error
        if output is None and self._closed:
            raise StopAsyncIteration
        if self._deliveries is not None and isinstance(output, Piece) and self.made_at is not None:
            self._deliveries.note(monotonic() - self.made_at)
        return output

    def cancel(self) -> None:
        """Ask the engine to stop; the end comes as `Finished`. May be called at any time, repeatedly."""
        if not self._closed and not self._cancelled:
            self._cancelled = True
            self._on_cancel(self.request_id)

    def __aiter__(self) -> Streamer:
        return self

    async def __anext__(self) -> Output:
        while (output := self.get_nowait()) is None:
            self._wakeup = asyncio.get_running_loop().create_future()
            await self._wakeup
        return output

    def _wake(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    def _take(self) -> Output | None:
        """Take the oldest output, or None; neighbours of one kind are merged."""
        if self._early:
            return self._early.pop(0)
        if self._pieces:
            return self._take_piece()
        last, self._last = self._last, None
        return last

    def _take_piece(self) -> Piece:
        first, self.made_at = self._pieces.popleft()
        if not self._pieces:
            return first
        match first:
            case Chunk():
                chunks = self._neighbours(first)
                logprobs = tuple(chain.from_iterable(chunk.logprobs for chunk in chunks))
                return Chunk(first.request_id, *_joined(chunks), logprobs)
            case Reasoning():
                return Reasoning(first.request_id, *_joined(self._neighbours(first)))
            case ToolCallOutput():
                return first
            case _:
                assert_never(first)

    def _neighbours(self, first: T) -> list[T]:
        """Take the pieces of the same kind that follow, up to `MERGED_CHARS`; return all, `first` included."""
        merged, chars = [first], len(first.text)
        while self._pieces and isinstance(piece := self._pieces[0][0], type(first)):
            chars += len(piece.text)
            if chars > MERGED_CHARS:
                break
            self._pieces.popleft()
            merged.append(piece)
        return merged


def _joined(pieces: Sequence[Chunk | Reasoning]) -> tuple[str, int]:
    return "".join(piece.text for piece in pieces), sum(piece.tokens for piece in pieces)
