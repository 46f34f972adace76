"""The interface of an engine for the layers above. In the gateway, nothing of it imports torch or transformers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import Protocol, TypeVar

import msgspec

from engine.messages import EngineStatistics, Message, ModelFacts, Output, Params, Request
from engine.reply_spec import PLAIN, ReplySpec


class EngineState(StrEnum):
    """The state of an engine."""

    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"
    """The process died and is being restarted. Requests wait for it."""
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
        """Whether there is nothing to mend: requests are served, at once or after a start that they cause."""
        return self in {EngineState.READY, EngineState.ASLEEP}


class EngineStatus(msgspec.Struct, frozen=True):
    """The status of an engine, for `/readyz` and the terminal.

    `stage` is for people; `progress` is the loaded share, from 0 to 1. `message` says why the engine is not ready, if it can.
    """

    state: EngineState
    stage: str = ""
    progress: float = 0.0
    message: str | None = None
    restarts: int = 0


class OutputStream(Protocol):
    """The outputs of one request, in order; then the iteration ends.

    They are `Queued`*, `Started`, `Prefilling`*, then `Reasoning`, `Chunk` and `ToolCallOutput` in any order, and `Finished`. Any but
    the last may be missing. A preempted request is queued and started again; so is one that an upstream failed before its first
    text (`Retried` says so). Chunks merge while their reader is late. A waiting `Queued` or `Prefilling` is superseded by the
    next output. After the outputs so far, iterating raises `EngineLost` if the engine's process died, and `EngineUnavailable`
    if an upstream refused the request.
    """

    @property
    def request_id(self) -> str:
        """The id of the request that this stream answers."""
        ...

    @property
    def made_at(self) -> float | None:
        """When the oldest token in the last taken piece was made, by `time.monotonic`; None if unknown."""
        ...

    def __aiter__(self) -> AsyncIterator[Output]:
        """Return the stream itself."""
        ...

    async def __anext__(self) -> Output:
        """Wait for the next output. Raises StopAsyncIteration after the end, EngineLost after a death, EngineUnavailable."""
        ...

    def cancel(self) -> None:
        """Ask the engine to stop; the end comes as `Finished`. May be called at any time, repeatedly."""
        ...


class Engine(Protocol):
    """Generates replies."""

    @property
    def status(self) -> EngineStatus:
        """The engine's state."""
        ...

    @property
    def facts(self) -> ModelFacts | None:
        """The model, once it was loaded; stays known while the engine restarts."""
        ...

    @property
    def parts(self) -> tuple[Engine, ...]:
        """The engines behind this interface, always the same in the same order; itself if it is the only one."""
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
        """Return the prompt's length in tokens, counted to a little beyond the window; waits while the engine loads or restarts.

        `client`, `spec`: as in `Request`. Cancelling the wait cancels the count.

        Raises EngineUnavailable, and PromptRejected for messages that the model's template refuses or a grammar that can't be
        compiled.
        """
        ...

    def generate(self, request: Request) -> OutputStream:
        """Ask for a reply. A request made while the engine loads or restarts waits for it.

        Raises EngineUnavailable if the engine has failed or is stopped, ValueError if a request of the same id is still open.
        """
        ...

    def statistics(self) -> EngineStatistics:
        """Return the latest facts of the running process; zeros before the first."""
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
"""The spec without any wishes, which every engine can follow."""


def not_served(params: Params, facts: ModelFacts) -> str | None:
    """Return the first field that the engine can't follow, or None."""
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
        ("raw", "raw", "", spec.raw),
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


class Runnable(Protocol):
    """Something that runs until it is cancelled."""

    async def run(self) -> None:
        """Serve until this is cancelled."""
        ...


R = TypeVar("R", bound=Runnable)


@asynccontextmanager
async def running(one: R, name: str) -> AsyncIterator[R]:
    """Run it inside the block, and stop it at the end."""
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(one.run(), name=name)
        try:
            yield one
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
    """The vectors as JSON, in the order of their texts. `tokens`: those of the texts; 0 if they were not counted."""

    vectors: tuple[msgspec.Raw, ...]
    tokens: int


class Embedder(Protocol):
    """Embeds texts."""

    @property
    def name(self) -> str:
        """The model's name for clients."""
        ...

    @property
    def max_texts(self) -> int:
        """Most texts of one request."""
        ...

    @property
    def takes_dimensions(self) -> bool:
        """Whether a request can choose the length of the vectors."""
        ...

    async def embed(self, texts: Texts) -> Vectors:
        """Embed each text. Cancelling the wait cancels the request.

        Raises PromptRejected, EngineBusy, EngineUnavailable.
        """
        ...
