"""Calls of server tools: run in their slots, with a timeout that questions pause, and with progress.

A question to the user is a form in MCP's restricted schemas:
https://modelcontextprotocol.io/specification/2025-11-25/client/elicitation#requested-schema
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from threading import Lock
from typing import Annotated, Any, Literal

import msgspec
import structlog
from msgspec import Meta

from sessions.limits.slots import FairSlots, Slot
from sessions.tools.tool_registry import (
    REASON_BYTES,
    RESULT_BYTES,
    Accepted,
    Answer,
    CallContext,
    Dismissed,
    Elicitation,
    Progress,
    ToolFailed,
    ToolLost,
    cut_to,
)

MOST_WAITING = 256
"""Calls that may wait for a slot. Further ones are refused."""
MOST_QUESTIONS = 8
"""Questions that one call may ask its user."""
GOODBYE_S = 1.0
"""How long running calls have to end when their source ends."""
INTERVAL_S = 0.25
"""Seconds between two reports."""
PROGRESS_CHARS = 200
FORM_BYTES = 16 * 1024
"""Bytes of a form's schema."""
MESSAGE_CHARS = 4096
"""Characters of the message that goes with a form."""
MOST_FIELDS = 32
MOST_CHOICES = 256
ANSWER_CHARS = 16_384
"""Characters of one text in an answer, if the form allows that many."""
_log = structlog.get_logger("midstream.tools")


class Calls:
    """The calls of one source, in its slots, fairly between owners. `result_bytes`: the most bytes of a result; a longer one is cut."""

    def __init__(self, slots: FairSlots, *, result_bytes: int = RESULT_BYTES) -> None:
        self._slots = slots
        self._result_bytes = result_bytes
        self._tasks: set[asyncio.Task[str]] = set()
        self._waiting = 0

    async def run(self, tool: str, work: Work, context: CallContext, *, limit_s: float) -> str:
        """Do the work and return its result. `limit_s`: seconds, including the wait for a slot.

        Raises ToolFailed, and ToolLost if the time is up while the tool runs. A cancelled caller does not wait for the tool's
        end.
        """
        time_limit = PausableTimeout(limit_s)
        begun: list[asyncio.Task[str]] = []
        try:
            async with time_limit.lasting():
                call = LiveCall(context, slot=await self._slot(context.owner), time_limit=time_limit)
                begun.append(self._begin(tool, work, call))
                try:
                    await asyncio.wait(begun)
                finally:
                    call.close()
                    begun[0].cancel()
        except TimeoutError:
            raise _too_late(limit_s, ran=bool(begun)) from None
        return self._result(begun[0])

    async def end(self) -> None:
        """Cancel running calls, and wait a moment for their ends."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=GOODBYE_S)

    async def _slot(self, owner: str) -> CallSlot:
        """Wait for a slot. Raises ToolFailed if too many calls wait already."""
        if (slot := self._slots.take_nowait(owner)) is None:
            if self._waiting >= MOST_WAITING:
                raise ToolFailed("Too many tool calls are waiting. This one was not run.")
            self._waiting += 1
            try:
                slot = await self._slots.take(owner)
            finally:
                self._waiting -= 1
        return CallSlot(self._slots, slot)

    def _begin(self, tool: str, work: Work, call: LiveCall) -> asyncio.Task[str]:
        task = asyncio.ensure_future(_worked(tool, work, call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: call.slot.release())
        task.add_done_callback(lambda done: _note(tool, done))
        return task

    def _result(self, task: asyncio.Task[str]) -> str:
        if task.cancelled():
            raise ToolFailed("The tool cancelled itself.")
        return cut_to(task.result(), self._result_bytes)


async def _worked(tool: str, work: Work, call: LiveCall) -> str:
    """Do the work. Whatever it raises becomes a ToolFailed with a text for the model."""
    try:
        return await work(call)
    except ToolLost as failure:
        raise ToolLost(cut_to(str(failure), REASON_BYTES)) from failure
    except ToolFailed as failure:
        raise ToolFailed(cut_to(str(failure), REASON_BYTES)) from failure
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - the border of others' code
        raise _failure(tool, error) from None


def _failure(tool: str, error: BaseException) -> ToolFailed:
    """Return what the model learns of an exception: its type. The message may quote addresses, paths and passwords."""
    incident = secrets.token_hex(4)
    _log.error("tool failed", tool=tool, incident=incident, exc_info=error)
    return ToolFailed(f"The tool failed with {type(error).__name__}. The server's log has it as {incident}.")


def _too_late(limit_s: float, *, ran: bool) -> ToolFailed:
    if ran:
        return ToolLost(
            f"The tool did not answer within {limit_s:g} s. It is not known whether it did its work."
        )
    return ToolFailed(f"Too many tool calls were running. This one was not started within {limit_s:g} s.")


def _note(tool: str, task: asyncio.Task[str]) -> None:
    """Log how a call ended, even if nobody waits for it."""
    outcome = "cancelled" if task.cancelled() else "failed" if task.exception() else "done"
    _log.info("tool called", tool=tool, outcome=outcome)


class LiveCall:
    """A call whose tool runs. Once the call is over, its tool reaches nobody."""

    def __init__(self, context: CallContext, *, slot: CallSlot, time_limit: PausableTimeout) -> None:
        self.slot = slot
        self.over = asyncio.Event()
        self._context = context
        self._time_limit = time_limit
        self._feed = ProgressFeed(context.progress)
        self._questions = 0
        self._open_questions: set[asyncio.Future[Answer]] = set()
        self.context: CallContext = msgspec.structs.replace(
            context, elicit=self._elicit, progress=self._feed.report
        )
        """The context for the tool."""

    def close(self) -> None:
        """End the call, since nobody waits for it: open questions are dismissed, and progress is ignored."""
        self.over.set()
        self._feed.close()
        for question in self._open_questions:
            question.cancel()

    async def _elicit(self, elicitation: Elicitation) -> Answer:
        """Ask the user, and stop the call's clock meanwhile.

        Raises ToolFailed for an unsupported form, for too many questions, and for an answer that does not fit.
        """
        self._questions += 1
        if self._questions > MOST_QUESTIONS:
            raise ToolFailed(f"A call may ask {MOST_QUESTIONS} questions at most.")
        try:
            form = form_of(elicitation.schema)
        except UnsupportedForm as refusal:
            raise ToolFailed(str(refusal)) from None
        message = elicitation.message.encode("utf-8", "replace").decode()[:MESSAGE_CHARS]
        answer = await self._answer(Elicitation(message=message, schema=elicitation.schema))
        if isinstance(answer, Accepted) and (wrong := validation_error(form, answer.content)) is not None:
            raise ToolFailed(f"The user's answer does not fit the form: {wrong}.")
        return answer

    async def _answer(self, elicitation: Elicitation) -> Answer:
        """Wait for an answer. The end of the call dismisses the question, whichever task asks it."""
        if self.over.is_set():
            return Dismissed()
        question: asyncio.Future[Any] = asyncio.ensure_future(self._context.elicit(elicitation))
        self._open_questions.add(question)
        try:
            with self._time_limit.paused():
                await asyncio.wait({question})
        finally:
            question.cancel()
            self._open_questions.discard(question)
        return Dismissed() if question.cancelled() else question.result()


Work = Callable[[LiveCall], Awaitable[str]]


class CallSlot:
    """The slot of a call. It is free again when all its holders have released it."""

    def __init__(self, slots: FairSlots, slot: Slot) -> None:
        self._slots = slots
        self._slot = slot
        self._holders = 1

    def hold(self) -> None:
        """Keep the slot for one more holder, such as a thread that outlives its call."""
        self._holders += 1

    def release(self) -> None:
        """Release one hold. Call it as often as the slot is held."""
        self._holders -= 1
        if self._holders == 0:
            self._slots.release(self._slot)


class PausableTimeout:
    """A time limit in seconds. Used once."""

    def __init__(self, limit_s: float) -> None:
        self._left = limit_s
        self._pauses = 0
        self._limit: asyncio.Timeout | None = None

    @asynccontextmanager
    async def lasting(self) -> AsyncIterator[None]:
        """Raise TimeoutError from the block when the time is up."""
        try:
            async with asyncio.timeout(self._left) as self._limit:
                yield
        finally:
            self._limit = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock within the block; blocks may overlap."""
        self._stop()
        try:
            yield
        finally:
            self._resume()

    def _stop(self) -> None:
        self._pauses += 1
        limit = self._running
        if self._pauses == 1 and limit is not None and (end := limit.when()) is not None:
            self._left = end - asyncio.get_running_loop().time()
            limit.reschedule(None)

    def _resume(self) -> None:
        self._pauses -= 1
        if self._pauses == 0 and (limit := self._running) is not None:
            limit.reschedule(asyncio.get_running_loop().time() + self._left)

    @property
    def _running(self) -> asyncio.Timeout | None:
        """The running clock; None before and after the block, or once the time is up."""
        return None if self._limit is None or self._limit.expired() else self._limit


class ProgressFeed:
    """Takes reports from any thread, and passes the newest on in the event loop. Create it in the loop."""

    def __init__(self, on_progress: Callable[[Progress], None], *, interval_s: float = INTERVAL_S) -> None:
        self._on_progress = on_progress
        self._interval_s = interval_s
        self._loop = asyncio.get_running_loop()
        self._lock = Lock()
        self._newest: Progress | None = None
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._waiting = False
        self._closed = False

    def report(self, progress: Progress) -> None:
        """Report how far the call is. Returns at once."""
        with self._lock:
            self._newest = progress
            if self._waiting or self._closed:
                return
            self._waiting = True
            self._loop.call_soon_threadsafe(self._arm)

    def close(self) -> None:
        """Ignore all later reports. Call it in the loop."""
        with self._lock:
            self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        if not self._closed:
            self._timer = self._loop.call_at(max(self._due, self._loop.time()), self._flush)

    def _flush(self) -> None:
        with self._lock:
            newest, self._waiting = self._newest, False
        self._due = self._loop.time() + self._interval_s
        if newest is not None and (shown := plain(newest)) is not None:
            self._on_progress(shown)


def plain(progress: Progress) -> Progress | None:
    """Return a report as it may be shown; None if it has no valid number."""
    if not math.isfinite(progress.done):
        return None
    total = progress.total if progress.total is not None and math.isfinite(progress.total) else None
    message = progress.message.encode("utf-8", "replace").decode()[:PROGRESS_CHARS]
    return Progress(done=progress.done, total=total, message=message)


class UnsupportedForm(ValueError):
    """A form that is not supported. The message is for the author of the tool."""


class Choice(msgspec.Struct, frozen=True):
    """One of several values. `title` is for people."""

    const: str


Choices = Annotated[tuple[str, ...], Meta(min_length=1, max_length=MOST_CHOICES)]
Titled = Annotated[tuple[Choice, ...], Meta(min_length=1, max_length=MOST_CHOICES)]


class Items(msgspec.Struct, frozen=True, rename="camel"):
    """The values that may be chosen together."""

    enum: Choices | None = None
    any_of: Titled | None = None


class Field(msgspec.Struct, frozen=True, rename="camel"):
    """One field of a form, in the terms of JSON Schema."""

    type: Literal["string", "number", "integer", "boolean", "array"]
    enum: Choices | None = None
    one_of: Titled | None = None
    items: Items | None = None
    min_length: int = 0
    max_length: int = ANSWER_CHARS
    minimum: float | None = None
    maximum: float | None = None
    min_items: int = 0
    max_items: int = MOST_CHOICES

    @property
    def choices(self) -> tuple[str, ...] | None:
        """The values that may be chosen; None if the user writes one."""
        source = self.items or self
        titled = source.any_of if isinstance(source, Items) else source.one_of
        return source.enum if titled is None else tuple(choice.const for choice in titled)


class Form(msgspec.Struct, frozen=True):
    """A flat object. `required`: the fields that an answer must have."""

    type: Literal["object"]
    properties: Annotated[dict[str, Field], Meta(max_length=MOST_FIELDS)]
    required: tuple[str, ...] = ()


def form_of(schema: str) -> Form:
    """Read a form's schema. Raises UnsupportedForm."""
    if len(schema.encode("utf-8", "replace")) > FORM_BYTES:
        raise UnsupportedForm(f"A form's schema may have at most {FORM_BYTES} bytes.")
    try:
        form = msgspec.json.decode(schema.encode(), type=Form)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise UnsupportedForm(f"A form must be a flat object of plain fields: {error}.") from None
    if unknown := set(form.required) - form.properties.keys():
        raise UnsupportedForm(f"A form requires {min(unknown)!r}, which is not one of its fields.")
    return form


def validation_error(form: Form, content: dict[str, Any]) -> str | None:
    """Return why an answer does not fit the form; None if it does."""
    return next(_misfits(form, content), None)


def _misfits(form: Form, content: dict[str, Any]) -> Iterator[str]:
    for name in form.required:
        if name not in content:
            yield f"{name} is missing"
    for name, value in content.items():
        field = form.properties.get(name)
        if field is None:
            yield f"{name} was not asked for"
        elif (wanted := _unmet(field, value)) is not None:
            yield f"{name} must be {wanted}"


def _unmet(field: Field, value: Any) -> str | None:
    """Return what a value should be; None if it fits."""
    match field.type:
        case "boolean":
            return None if isinstance(value, bool) else "true or false"
        case "integer" | "number":
            return _unmet_number(field, value)
        case "string":
            return _unmet_text(field, value)
        case "array":
            return _unmet_choices(field, value)


def _unmet_number(field: Field, value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "a number"
    if field.type == "integer" and value != value // 1:
        return "a whole number"
    if field.minimum is not None and value < field.minimum:
        return f"{field.minimum:g} or more"
    if field.maximum is not None and value > field.maximum:
        return f"{field.maximum:g} or less"
    return None


def _unmet_text(field: Field, value: Any) -> str | None:
    if not isinstance(value, str):
        return "a text"
    if field.choices is not None:
        return None if value in field.choices else "one of the choices"
    if not field.min_length <= len(value) <= min(field.max_length, ANSWER_CHARS):
        return f"{field.min_length} to {min(field.max_length, ANSWER_CHARS)} characters"
    return None


def _unmet_choices(field: Field, value: Any) -> str | None:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        return "a list of choices"
    if field.choices is not None and not set(value) <= set(field.choices):
        return "a list of the choices"
    if not field.min_items <= len(value) <= min(field.max_items, MOST_CHOICES):
        return f"{field.min_items} to {min(field.max_items, MOST_CHOICES)} choices"
    return None
