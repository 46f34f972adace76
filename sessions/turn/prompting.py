"""Makes the prompt of a turn: what the history says on its branch, as much of it as the model's window takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import ceil

from engine.door import Engine
from engine.errors import EngineBusy, EngineError, EngineUnavailable, PromptRejected
from engine.lacking import not_served
from engine.messages import Message, ModelFacts, Params
from sessions.errors import BadParams, ContextOverflow, EngineDown, Overloaded
from sessions.records import MessageRecord, Meta
from sessions.store.history.history import History
from sessions.store.history.keys import Keys
from sessions.turn.context import Prompt, Room, fit
from sessions.turn.policy import SystemPrompt
from sessions.turn.sends import Generation

DEFAULT_NEW_TOKENS = 512
UNKNOWN_TOKEN_BYTES = 256
"""Of the longest token, where the engine does not know it: twice what the vocabularies of large models have."""


class Prompts:
    """Asks the history for messages, and the engine's tokenizer how long they are. `operators`: their system prompt."""

    def __init__(self, *, engine: Engine, history: History, operators: str) -> None:
        self._engine = engine
        self._history = history
        self._operators = operators

    def system(self, meta: Meta, generation: Generation) -> SystemPrompt:
        """The system prompt of a conversation's next turn."""
        named = meta.system if generation.system is None else generation.system
        return SystemPrompt(named, self._operators)

    async def prompt(self, keys: Keys, message: MessageRecord, generation: Generation, meta: Meta) -> Prompt:
        """The prompt that ends with a user's message.

        Raises ContextOverflow, BadParams, EngineDown, StoreDown.
        """
        records = [message]
        if message.parent_id is not None:
            branch = await self._history.branch(keys, leaf=message.parent_id, last=meta.context_from)
            records = [*branch.messages, message]
        return await self._fit(records, generation, meta)

    async def check(self, message: MessageRecord, generation: Generation, meta: Meta) -> None:
        """Raises ContextOverflow where the message alone is too long; BadParams, EngineDown."""
        await self._fit([message], generation, meta)

    async def _fit(self, records: list[MessageRecord], generation: Generation, meta: Meta) -> Prompt:
        system = self.system(meta, generation).text
        with as_refusals():
            facts = await self._engine.ready()
            refuse_unserved(generation.params, facts)
            asked = generation.params.max_new_tokens or facts.defaults.max_new_tokens or DEFAULT_NEW_TOKENS
            refuse_endless([Message("user", records[-1].content)], facts)
            room = Room.of(facts.context_tokens, asked)
            return await fit(system, records, room=room, count=self._engine.count_tokens)


def refuse_endless(messages: Sequence[Message], facts: ModelFacts) -> None:
    """What can't fit the window by its bytes alone is refused before it is tokenized, which takes long. Raises ContextOverflow.

    Templates may leave out white space at the ends: it counts only where there is more of it than of all else that fits.
    """
    room = facts.context_tokens * (facts.token_bytes or UNKNOWN_TOKEN_BYTES)
    texts = [message.content for message in messages]
    if _length(texts) > 2 * room or _length(text.strip() for text in texts) > room:
        raise ContextOverflow(tokens=None, limit=facts.context_tokens - 1)


def _length(texts: Iterable[str]) -> int:
    """In bytes of UTF-8."""
    return sum(len(text.encode()) for text in texts)


def refuse_unserved(params: Params, facts: ModelFacts) -> None:
    """What would be dropped in silence is refused with its name. Raises BadParams."""
    if (field := not_served(params, facts)) is not None:
        raise BadParams(f"`{field}` can't be followed by the engine behind this server.", field=field)


@contextmanager
def as_refusals() -> Iterator[None]:
    """What the engine says of a prompt, as refusals. Raises BadParams, Overloaded, EngineDown."""
    try:
        yield
    except PromptRejected as error:
        raise BadParams(f"The model's chat template refuses these messages: {error}") from error
    except EngineBusy as busy:
        raise Overloaded(str(busy), retry_after_ms=retry_after_ms(busy)) from busy
    except EngineError as error:
        raise EngineDown(str(error), retry_after_ms=retry_after_ms(error)) from error


def retry_after_ms(error: EngineError) -> int | None:
    """When an engine may take requests again, where it said so."""
    after_s = error.retry_after_s if isinstance(error, EngineUnavailable) else None
    return None if after_s is None else ceil(after_s * 1000)
