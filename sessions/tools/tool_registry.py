"""Server tools: their interface, the context of a call, and the registry with the tools of all sources. Knows neither functions nor MCP.

ToolFailed            the call failed; its message is for the model
└── ToolLost          it is not known whether the tool did its work
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from enum import Enum, StrEnum
from typing import Any, Protocol

import msgspec
import structlog

from engine.messages import Tool

NAME = r"[A-Za-z0-9_-]{1,64}"
"""Names of tools, as OpenAI's API has them."""


class Approval(Enum):
    """Whether a user has to allow each call before it is run."""

    NEVER = "never"
    ALWAYS = "always"


class ServerTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the server runs. `name`: 1 to 64 of A-Z, a-z, 0-9, `_` and `-`, unique in its registry.

    `parameters`: the JSON Schema of an object, as text. `idempotent`: a call with an unknown outcome may be run again.
    """

    name: str
    description: str
    parameters: str
    approval: Approval
    idempotent: bool

    @property
    def shown(self) -> Tool:
        """The tool as the model sees it."""
        return Tool(name=self.name, description=self.description, parameters=self.parameters)


class Progress(msgspec.Struct, frozen=True):
    """The progress of a call, in the tool's own unit. `total`: None if unknown. `message` is for the user."""

    done: float
    total: float | None = None
    message: str = ""


def no_progress(_: Progress) -> None:
    """Ignore the progress of a call that nobody watches."""


class CallContext(msgspec.Struct, frozen=True, kw_only=True):
    """A call's context. `owner`: an opaque digest of the owner; `call_id`: the same if the call is run again.

    `progress` is called in the event loop, a few times a second at most, and returns at once.
    """

    owner: str
    conversation: str
    call_id: str
    progress: Callable[[Progress], None] = no_progress


class ToolFailed(Exception):
    """A call failed. The message is for the model, in plain words, with nothing that the user may not see."""


class ToolLost(ToolFailed):
    """A call was started, and its outcome is not known. Only an idempotent tool may be run again."""


class ToolSource(Protocol):
    """A source of tools: the operator's functions, or one MCP server."""

    def offered(self) -> tuple[ServerTool, ...]:
        """Return the current tools, sorted by name; the same object as before if nothing changed."""
        ...

    async def run(self, name: str, arguments: dict[str, Any], context: CallContext) -> str:
        """Run a call to its end. Raises ToolFailed. Cancelling the task cancels the call."""
        ...

    def running(self) -> AbstractAsyncContextManager[object]:
        """Serve while the context is open."""
        ...


RESULT_BYTES = 64 * 1024
"""Bytes of a result in UTF-8, unless the operator sets another limit."""
REASON_BYTES = 2048
"""Bytes of a tool's message about its failure."""


def cut_to(text: str, limit: int) -> str:
    """Return the text, or its first `limit` bytes of UTF-8 in whole characters, and a line that says that it was cut.

    Lone surrogates become question marks.
    """
    written = text.encode("utf-8", "replace")
    if len(written) <= limit:
        return written.decode()
    kept = written[:limit].decode("utf-8", "ignore")
    return (
        f"{kept}\n[The result was cut here. It has {len(text)} characters; these are the first {len(kept)}.]"
    )


class Outcome(StrEnum):
    """How a call ended."""

    DONE = "done"
    FAILED = "failed"
    LOST = "lost"
    CANCELLED = "cancelled"


class ToolCounters:
    """Counts calls since the start of this process. `now`: a clock in seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self.started = 0
        self.ended = dict.fromkeys(Outcome, 0)
        self.seconds = dict.fromkeys(Outcome, 0.0)
        """Seconds of ended calls, including waits for a place."""

    @property
    def running(self) -> int:
        """Calls that have not ended."""
        return self.started - sum(self.ended.values())

    @contextmanager
    def call(self) -> Iterator[None]:
        """Count the block as one call."""
        self.started += 1
        begun, outcome = self._now(), Outcome.FAILED
        try:
            yield
            outcome = Outcome.DONE
        except ToolLost:
            outcome = Outcome.LOST
            raise
        except asyncio.CancelledError:
            outcome = Outcome.CANCELLED
            raise
        finally:
            self.ended[outcome] += 1
            self.seconds[outcome] += self._now() - begun


MOST_KNOWN = 4096
"""Names of earlier tools that are remembered: if a source's tools keep changing, older names are forgotten."""
_log = structlog.get_logger("midstream.tools")


class ToolRegistry:
    """The tools of all sources. If two have the same name, the earlier source has precedence."""

    def __init__(self, sources: Sequence[ToolSource] = ()) -> None:
        self._sources = tuple(sources)
        self._seen: tuple[tuple[ServerTool, ...], ...] = ()
        self._offered: dict[str, tuple[ServerTool, ToolSource]] = {}
        self._known: set[str] = set()
        self.counters = ToolCounters()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run all sources while the context is open. They start and stop concurrently."""
        over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            begun = [asyncio.Event() for _ in self._sources]
            for source, begins in zip(self._sources, begun, strict=True):
                group.create_task(_at_work(source, begins, over))
            for begins in begun:
                await begins.wait()
            try:
                yield
            finally:
                over.set()

    def offered(self) -> tuple[ServerTool, ...]:
        """Return the current tools, in an order that stays the same while they do."""
        return tuple(tool for tool, _ in self._current().values())

    def tool(self, name: str) -> ServerTool | None:
        """Return the tool of that name; None if there is none now."""
        found = self._current().get(name)
        return found and found[0]

    def has_gone(self, name: str) -> bool:
        """Return whether a tool of that name existed before, but not now: its source is away."""
        return name not in self._current() and name in self._known

    async def run(self, name: str, arguments: dict[str, Any], context: CallContext) -> str:
        """Run a call to its end; return its result for the model, cut to its limit.

        Raises ToolFailed with a message for the model, and ToolLost if it is not known whether the tool did its work. Cancelling
        the task cancels the call: the tool is notified if possible, and its later output is ignored.
        """
        with self.counters.call():
            found = self._current().get(name)
            if found is None:
                raise ToolFailed(f"There is no tool {name!r} now.")
            return await found[1].run(name, arguments, context)

    def _current(self) -> dict[str, tuple[ServerTool, ToolSource]]:
        """Return the tools by name, collected again if a source has changed."""
        lists = tuple(source.offered() for source in self._sources)
        if lists != self._seen:
            self._seen = lists
            self._offered = self._collected(lists)
            if len(self._known) > MOST_KNOWN:
                self._known.clear()
            self._known.update(self._offered)
        return self._offered

    def _collected(
        self, lists: tuple[tuple[ServerTool, ...], ...]
    ) -> dict[str, tuple[ServerTool, ToolSource]]:
        found: dict[str, tuple[ServerTool, ToolSource]] = {}
        for source, tools in zip(self._sources, lists, strict=True):
            for tool in tools:
                if tool.name in found:
                    _log.warning("tool left out: another source has its name", tool=tool.name)
                else:
                    found[tool.name] = (tool, source)
        return found


async def _at_work(source: ToolSource, begins: asyncio.Event, over: asyncio.Event) -> None:
    async with source.running():
        begins.set()
        await over.wait()
