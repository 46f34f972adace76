"""Has the model write titles of new conversations while it is idle: after all turns, one at a time."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import deque

import msgspec
import structlog

from engine.api import Engine
from engine.errors import EngineError
from engine.messages import Chunk, Finished, FinishReason, Message, Params, ReplySpec, Request
from engine.served_models import served_models
from sessions.conversation.conversation import BackgroundTasks, Conversation
from sessions.errors import Refused
from sessions.events import Reason, Titled
from sessions.filters.chain import Filters
from sessions.limits.slots import as_service
from sessions.store.index import Index
from sessions.turn.message_request import Append
from sessions.turn.turn import Turn

MAX_CHARS = 80
"""Characters of a title that the server makes; people may write longer ones."""
READ_CHARS = 2000
"""Characters of a message that are read for a title, by the model or here: a message may have millions."""
INSTRUCTION = (
    "Write a title for this conversation, of at most five words, in the language of the conversation. "
    "Answer with the title alone."
)

_ATTACHED = re.compile(r"(?:\A|\n\n)\[(?P<name>[^\n\]]{1,200})\]\n~{4,}\n")
"""The beginning of a text that the page attaches to a message."""
_MARKS = "*_`'\"\u201c\u201d\u201e\u00ab\u00bb"
"""Marks of Markdown and quotation around words."""
_SHOWN = re.compile(r"\S")
_NAME = re.compile(r"title\s*[:\uff1a]\s*", re.IGNORECASE)


def first_title(content: str) -> str:
    """Return a conversation's initial title: the beginning of its first message, else the name of an attachment."""
    shown = _SHOWN.search(content)
    if shown is None:
        return ""
    beginning = content[shown.start() : shown.start() + READ_CHARS]
    attached = _ATTACHED.search(beginning)
    typed = beginning if attached is None else beginning[: attached.start()]
    named = "" if attached is None else attached["name"]
    return " ".join((typed if typed.strip() else named).split())[:MAX_CHARS]


def title_prompt(messages: tuple[Message, ...], reply: str) -> tuple[Message, ...]:
    """Return the prompt for a title. It begins with `messages`, the reply's prompt, whose keys and values are kept."""
    return (*messages, Message("assistant", reply), Message("user", INSTRUCTION))


def parse_title(text: str) -> str:
    """Return the title in a model's answer: its first line without decoration; empty if there is none."""
    line = next((line for line in map(str.strip, text.splitlines()) if line), "")
    while (bare := _unnamed(line.lstrip(f"#{_MARKS} ")).rstrip(f".\u3002{_MARKS} ")) != line:
        line = bare
    return first_title(line) if any(one.isalnum() for one in line) else ""


def _unnamed(line: str) -> str:
    named = _NAME.match(line)
    return line if named is None else line[named.end() :]


MAX_TOKENS = 24
THOUGHT_TOKENS = 1024
"""Further tokens for a model whose reply had reasoning."""
WITHIN_S = 60.0
"""A title that takes longer is given up: the conversation keeps its first words."""
MAX_WAITING = 64
"""Conversations that may wait for titles here; further ones keep their first words."""
LOWEST_PRIORITY = -1
"""The priority of a title in the engine's queue."""

_log = structlog.get_logger("midstream.titles")


class TitleGenerator:
    """Gives conversations their titles. After a failure, which is logged, a conversation keeps its first words."""

    def __init__(self, *, engine: Engine, index: Index, filters: Filters, tasks: BackgroundTasks) -> None:
        """`filters`: a title has to pass them, as messages do."""
        self._engine = engine
        self._index = index
        self._filters = filters
        self._tasks = tasks
        self._waiting: deque[tuple[Conversation, Turn, Request]] = deque()
        self._working: asyncio.Task[None] | None = None
        self._is_stopped = False

    def consider(self, conversation: Conversation, live: Turn, request: Request) -> None:
        """After a turn's end, queue its conversation for a title if no turn came before it."""
        if self._is_stopped or not _is_first_exchange(live) or len(self._waiting) >= MAX_WAITING:
            return
        self._waiting.append((conversation, live, request))
        if self._working is None:
            self._working = self._tasks.begin(self._work())

    def stop(self) -> None:
        """Write no more titles: a server that is about to stop would wait a minute for each."""
        self._is_stopped = True
        self._waiting.clear()
        if self._working is not None:
            self._working.cancel()

    async def _work(self) -> None:
        try:
            with as_service():
                while self._waiting:
                    await self._give(*self._waiting.popleft())
        finally:
            self._working = None

    async def _give(self, conversation: Conversation, live: Turn, request: Request) -> None:
        try:
            async with asyncio.timeout(WITHIN_S):
                await self._entitle(conversation, live, request)
        except (TimeoutError, EngineError, Refused) as trouble:
            conversation_id = conversation.conversation_id
            _log.info(
                "no title", conversation_id=conversation_id, reason=type(trouble).__name__, error=str(trouble)
            )
        except Exception:  # noqa: BLE001 - a task's boundary: the conversation has a title
            _log.exception("no title", conversation_id=conversation.conversation_id)

    async def _entitle(self, conversation: Conversation, live: Turn, request: Request) -> None:
        model = served_models(self._engine).named(request.model)
        if model.engine.facts is not None and model.engine.facts.languages is not None:
            return  # it only translates, and can't summarize a conversation
        title = parse_title(await self._written(live, request))
        if not title:
            _log.info("no title", conversation_id=conversation.conversation_id, reason="empty")
            return
        await self._filters.check(title)
        before = first_title(live.send.content)
        conversation_id = conversation.conversation_id
        if await self._index.set_title(conversation.owner, conversation_id, title, instead_of=before):
            conversation.publish(Titled(conversation_id=conversation_id, title=title))

    async def _written(self, live: Turn, request: Request) -> str:
        """Return what the model wrote. Raises EngineError if it could not end."""
        thought = THOUGHT_TOKENS if live.turn.reasoning else 0  # the model may have no switch for reasoning
        title_request = msgspec.structs.replace(
            request,
            request_id=f"title_{secrets.token_urlsafe(12)}",
            messages=title_prompt(request.messages, live.turn.text[:READ_CHARS]),
            params=Params(max_new_tokens=MAX_TOKENS + thought, do_sample=False),
            priority=LOWEST_PRIORITY,
            spec=ReplySpec(reasoning="least"),
        )
        stream = self._engine.generate(title_request)
        text = ""
        try:
            async for output in stream:
                if isinstance(output, Chunk):
                    text += output.text
                elif isinstance(output, Finished) and output.reason not in _WHOLE:
                    raise EngineError(output.error or f"The title ended as {output.reason}.")
        finally:
            stream.cancel()
        return text


_WHOLE = {FinishReason.STOP, FinishReason.LENGTH}


def _is_first_exchange(live: Turn) -> bool:
    """Return whether a turn is its conversation's first exchange, by its own record, and ended normally."""
    record = live.record
    is_sent = (
        isinstance(live.send.place, Append) and not live.send.untitled
    )  # an edited message, or a reply made anew, is not the first exchange
    is_first = is_sent and record.parent_id is None and not record.follows
    done = record.done
    is_whole = done is not None and done.saved and done.reason in {Reason.STOP, Reason.LENGTH}
    return is_first and is_whole and bool(live.send.content and live.turn.text.strip())
