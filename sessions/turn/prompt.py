"""Chooses a turn's model, and makes its prompt: the messages of its branch that fit the model's window."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from math import ceil
from typing import TypeVar

import msgspec

from engine.api import Engine, has_feature, messages_not_served, not_served, spec_not_served
from engine.errors import EngineBusy, EngineError, EngineUnavailable, PromptRejected
from engine.messages import (
    GROUP_SEPARATOR,
    PLAIN,
    REPLY_TOKENS,
    Message,
    ModelFacts,
    Params,
    ReplySpec,
    Request,
    Translation,
)
from engine.served_models import ServedModel, served_models
from engine.vision.image import NOT_SEEN, Seen, joined
from sessions.errors import BadParams, ContextOverflow, EngineDown, Forbidden, ModelNotFound, Overloaded
from sessions.languages import has_languages
from sessions.records import MessageRecord, Meta, SourceState
from sessions.store.codec import Keys
from sessions.store.history import History
from sessions.store.images import Images
from sessions.turn.message_request import GenerationConfig
from sessions.turn.tool_calls import as_written, result_text
from sessions.turn.turn import Turn

T = TypeVar("T")
TranslationTask = SourceState | Translation
"""A translation of a growing source, by any model that can continue a reply; or of a whole text, by one that only translates."""


class ModelChoice:
    """Knows the served models and their fallbacks. It takes aliases, and returns names."""

    def __init__(self, engine: Engine) -> None:
        self._models = served_models(engine)

    @property
    def longest_window(self) -> int | None:
        """Return the largest window of the models; None if not all are known."""
        models = self._models.models
        windows = [facts.context_tokens for model in models if (facts := model.engine.facts) is not None]
        return max(windows) if len(windows) == len(models) else None

    @property
    def takes_images(self) -> bool:
        """Whether a model takes images, or may once it is loaded."""
        known = [model.engine.facts for model in self._models.models]
        return any(facts is None or "images" in facts.features for facts in known)

    def named(self, name: str | None, listed: Sequence[str] = ()) -> str:
        """Return the model that a client names; empty if it names none. `listed`: the names that an error may list; empty: all.

        Raises ModelNotFound.
        """
        if name is None:
            return ""
        if (found := self._models.find(name)) is None:
            raise ModelNotFound(name, listed or [model.name for model in self._models.models])
        return found.name

    def requested(
        self,
        named: str | None,
        *kept: str,
        only: Sequence[str] = (),
        translates: TranslationTask | None = None,
    ) -> str:
        """Return the requested model: the named one, else the first of `kept` that is still served, else the default.

        `kept`: remembered models. `only`: the allowed models, by names or aliases; if no other choice is allowed, the first of
        them that is served. `translates`: what is to be translated. Without a named model, one that has the languages precedes
        the default, and remembered models that can't do the task. Raises ModelNotFound, Forbidden.
        """
        allowed = [model.name for one in only if (model := self._models.find(one)) is not None]
        name = self.named(named, allowed or only)
        if only and (not allowed or (name and name not in allowed)):
            raise Forbidden("This key may not use the model; it may use " + ", ".join(only) + ".")
        if name:
            return name
        served = [name for name in (*kept, self._models.default.name) if self._models.find(name) is not None]
        if translates is not None:
            able = [name for name in served[:-1] if _supports(self.facts(name), translates)]
            served = [*able, *self._translators(translates), *served]
        return next(iter([name for name in served if name in allowed] or allowed or served))

    def _translators(self, task: TranslationTask) -> list[str]:
        """Return models that only translate and have the languages; for a `Translation` without any, all: they report it."""
        languages = {
            model.name: facts.languages
            for model in self._models.models
            if (facts := model.engine.facts) is not None
            and facts.languages is not None
            and not model.engine.status.state.is_final
        }
        having = [name for name, known in languages.items() if has_languages(known, task.source, task.target)]
        return having or (list(languages) if isinstance(task, Translation) else [])

    def facts(self, name: str) -> ModelFacts | None:
        """Return the facts of a served model; None while it is not loaded."""
        found = self._models.find(name)
        return None if found is None else found.engine.facts

    def fallbacks(self, requested: str, chosen: str) -> tuple[str, ...]:
        """Return the fallbacks of the `requested` model that are left after the `chosen` one."""
        return self._models.fallbacks_of(requested, chosen)

    def serving(self, request: Request) -> list[ServedModel]:
        """Return the fallbacks of the request's model that serve now."""
        return self._models.serving(request.fallbacks)

    def at_once(self, request: Request) -> Request:
        """Return the request with the fallbacks that serve now: if there are any, it fails at once where it can't be served."""
        now = tuple(model.name for model in self.serving(request))
        return msgspec.structs.replace(request, fallbacks=now)

    async def first_that_can(self, requested: str, attempt: Callable[[ServedModel], Awaitable[T]]) -> T:
        """Return the result for the model, or its first fallback that can; wait if none serves. Raises as `attempt` does."""
        trouble: Overloaded | EngineDown | None = None
        for model in self._models.serving((requested, *self._models.fallbacks_of(requested))):
            try:
                return await attempt(model)
            except (Overloaded, EngineDown) as refused:
                trouble = trouble or refused
            except (BadParams, ContextOverflow):
                if model.name == requested:
                    raise
        if trouble is not None:
            raise trouble
        return await attempt(self._models.named(requested))


def _supports(facts: ModelFacts | None, task: TranslationTask) -> bool:
    """Whether a model can do the task, as far as it is known."""
    if facts is None:
        return True
    if facts.languages is None:
        return isinstance(task, SourceState) and "continue" in facts.features
    return has_languages(facts.languages, task.source, task.target)


Count = Callable[[Sequence[Message]], Awaitable[int]]


class ContextBudget(msgspec.Struct, frozen=True):
    """The window in tokens, and how many of them a prompt with history leaves to the reply."""

    window: int
    reply: int

    @classmethod
    def of(cls, window: int, max_new_tokens: int) -> ContextBudget:
        """Return the budget. At most a quarter of the window is reserved: a longer reply may end with `length`."""
        return cls(window, min(max_new_tokens, window // 4))


class Prompt(msgspec.Struct, frozen=True):
    """Messages that fit a model. `context_from`: the user message that they begin with."""

    messages: tuple[Message, ...]
    context_from: str
    model: str = ""


def exchanges(records: Sequence[MessageRecord]) -> list[list[MessageRecord]]:
    """Group a branch into exchanges: a user message with its reply, or several replies with calls between them."""
    groups: list[list[MessageRecord]] = []
    for record in records:
        if record.role == "user" or not groups:
            groups.append([])
        groups[-1].append(record)
    return groups


class ModelInputs(msgspec.Struct, frozen=True):
    """What a model can read besides text. What it can't read is left out; a note replaces an image."""

    tools: bool = True
    images: bool = True

    @classmethod
    def of(cls, facts: ModelFacts) -> ModelInputs:
        """Return what this model can read."""
        return cls(has_feature(facts, "tools", "auto"), "images" in facts.features)


ALL_INPUTS = ModelInputs()


def prompt_messages(
    system: str, records: Sequence[MessageRecord], *, inputs: ModelInputs = ALL_INPUTS
) -> tuple[Message, ...]:
    """Return a branch for the model, without empty replies. The engine makes it valid for the model's template.

    A reply at the end is continued, and may have only reasoning so far. Each call is followed by its outcome.
    """
    messages = [Message("system", system)] if system else []
    for record in records:
        if record.role == "user":
            content, images = _user_message(record, inputs)
            messages.append(Message("user", content, images=images))
        elif record.calls and inputs.tools:
            messages += _with_results(record)
        elif record.content or (record is records[-1] and record.reasoning and not record.calls):
            messages.append(Message(record.role, record.content) if record.calls else _reply_message(record))
    return tuple(messages)


def _user_message(record: MessageRecord, inputs: ModelInputs) -> Seen:
    if inputs.images or not record.images:
        return record.content, record.images
    return joined([*((NOT_SEEN, ()) for _ in record.images), (record.content, ())])


def _reply_message(record: MessageRecord) -> Message:
    return Message(record.role, record.content, reasoning=record.reasoning)


def _with_results(record: MessageRecord) -> list[Message]:
    """Return a reply that calls, and the outcome of each call."""
    called = msgspec.structs.replace(_reply_message(record), calls=tuple(map(as_written, record.calls)))
    return [called, *(Message("tool", result_text(call), call_id=call.call_id) for call in record.calls)]


async def fit(
    system: str,
    records: Sequence[MessageRecord],
    *,
    budget: ContextBudget,
    count: Count,
    inputs: ModelInputs = ALL_INPUTS,
    keeps_all: bool = False,
) -> Prompt:
    """Return the newest exchanges of a branch that fit; the new user message, or the results of calls, come last.

    `keeps_all`: return all exchanges. Raises ContextOverflow if these, or else the last exchange alone, do not fit the window.
    """
    groups = exchanges(records)

    def without(dropped: int) -> tuple[Message, ...]:
        return prompt_messages(system, _flat(groups[dropped:]), inputs=inputs)

    dropped = await _dropped_count(without, 0 if keeps_all else len(groups) - 1, budget, count)
    return Prompt(without(dropped), groups[dropped][0].message_id)


async def shortened(
    messages: tuple[Message, ...], *, budget: ContextBudget, count: Count, keeps_all: bool
) -> tuple[Message, ...]:
    """Shorten a prompt that was made for another window. Raises ContextOverflow as `fit` does."""
    system = messages[:1] if messages[0].role == "system" else ()
    begins = [place for place, message in enumerate(messages) if message.role == "user"][1:]

    def without(dropped: int) -> tuple[Message, ...]:
        return (*system, *messages[begins[dropped - 1] :]) if dropped else messages

    return without(await _dropped_count(without, 0 if keeps_all else len(begins), budget, count))


async def _dropped_count(
    without: Callable[[int], Sequence[Message]], most: int, budget: ContextBudget, count: Count
) -> int:
    """Return how many of the oldest exchanges have to go. Raises ContextOverflow if the rest does not fit either."""
    limit = budget.window - budget.reply
    if (tokens := await count(without(0))) <= limit:
        return 0
    low, high = 0, most  # the fewest that leave at most three quarters of the limit
    while low < high:
        middle = (low + high) // 2
        if await count(without(middle)) <= limit * 3 // 4:
            high = middle
        else:
            low = middle + 1
    if low == most and (alone := await count(without(low)) if low else tokens) >= budget.window:
        raise ContextOverflow(tokens=alone, limit=budget.window - 1)
    return low


def _flat(groups: Sequence[Sequence[MessageRecord]]) -> list[MessageRecord]:
    return [record for group in groups for record in group]


NO_IMAGES = "This model does not take images."
NO_TARGET = "This model does not translate: leave `target` and `source` out, or name one that does."
NO_CALLS = "This model can't read tool calls and their results: leave these messages out, or name a model that calls tools."
_UNSUPPORTED = {"images": NO_IMAGES, "target": NO_TARGET, "tool_calls": NO_CALLS, "role": NO_CALLS}
LONGEST_TOKEN_BYTES = 256
"""Most bytes of a token: twice what large models' vocabularies have."""
MOST_BYTES = 16 * 1024 * 1024
"""Bytes that are read of a branch that must be whole: no window holds more."""


class HistoryPromptBuilder:
    """Makes turns' prompts, for the requested model (`live.record.model`) or a fallback. `operators`: the operator's system prompt.

    Reads messages from the history, and counts them with the model's tokenizer.
    """

    def __init__(self, *, engine: Engine, history: History, images: Images, operators: str) -> None:
        self.choice = ModelChoice(engine)
        self._history = history
        self._images = images
        self._operators = operators

    def requested(self, generation: GenerationConfig, *kept: str, source: SourceState | None = None) -> str:
        """Return the requested model of a turn. `kept`: earlier choices; `source`: of a turn that answers a growing source.

        Raises ModelNotFound, Forbidden.
        """
        return self.choice.requested(
            generation.model, *kept, only=generation.only, translates=source or generation.translation
        )

    def system(self, meta: Meta, generation: GenerationConfig) -> SystemPrompt:
        """Return the system prompt of a conversation's next turn."""
        named = meta.system if generation.system is None else generation.system
        return SystemPrompt(named, self._operators)

    async def prompt(
        self,
        keys: Keys,
        live: Turn,
        message: MessageRecord,
        generation: GenerationConfig,
        meta: Meta,
    ) -> Prompt | None:
        """Choose the model of a turn, and return its prompt; None if it is cancelled and the engine takes too long.

        The prompt ends with `message`: a user's, a reply and its calls' outcomes, or a reply to continue. Raises ContextOverflow,
        BadParams, EngineDown, StoreDown; Overloaded if the server holds as many images as it can.
        """
        prompt = await live.engine.in_time(self._prompt(keys, live, message, generation, meta))
        if prompt is not None:
            size = sum(len(image.data) for message in prompt.messages for image in message.images)
            if size and live.admitted is not None:
                live.admitted.hold(size)
        live.choose(live.record.model if prompt is None else prompt.model)
        return prompt

    async def _prompt(
        self, keys: Keys, live: Turn, message: MessageRecord, generation: GenerationConfig, meta: Meta
    ) -> Prompt:
        records, is_cut = [message], False
        if message.parent_id is not None:
            last, most = (None, MOST_BYTES) if generation.keeps_all else (meta.context_from, None)
            branch = await self._history.branch(keys, leaf=message.parent_id, last=last, most_bytes=most)
            records = [*branch.messages, message]
            is_cut = most is not None and branch.older is not None
        prompt = await self._fit(keys, live, records, generation, meta, is_cut=is_cut)
        if not any(one.images for one in prompt.messages):
            return prompt
        return msgspec.structs.replace(prompt, messages=await self._images.shown(keys, prompt.messages))

    async def check(
        self,
        keys: Keys,
        live: Turn,
        records: list[MessageRecord],
        generation: GenerationConfig,
        meta: Meta,
    ) -> None:
        """Raise ContextOverflow if `records`, a message and any reply to continue, are too long alone; BadParams, EngineDown."""
        await live.engine.in_time(self._fit(keys, live, records, generation, meta))

    def request(
        self, keys: Keys, live: Turn, prompt: Prompt | None, generation: GenerationConfig, meta: Meta
    ) -> Request:
        """Return a turn's request; without messages if it has no prompt, since the model is not asked."""
        record = live.record
        chosen = record.fallback or record.model
        return engine_request(
            record.turn_id,
            prompt.messages if prompt else (),
            generation.params,
            owner=keys.owner,
            group=live.send.group,
            conversation_id=live.turn.ids.conversation_id,
            system=self.system(meta, generation),
            model=chosen,
            fallbacks=self.choice.fallbacks(record.model, chosen) if prompt else (),
            spec=generation.spec,
            user=generation.user,
        )

    async def _fit(
        self,
        keys: Keys,
        live: Turn,
        records: list[MessageRecord],
        generation: GenerationConfig,
        meta: Meta,
        *,
        is_cut: bool = False,
    ) -> Prompt:
        """`is_cut`: the branch before `records` was too long to read."""
        system, params, spec = self.system(meta, generation).text, generation.params, generation.spec
        client = client_key(keys.owner, live.send.group)

        async def fitted(model: ServedModel) -> Prompt:
            with as_refusals():
                facts = await model.engine.ready()
                refuse_unsupported(params, facts, spec)
                if records[-1].images and "images" not in facts.features:
                    raise BadParams(NO_IMAGES, field="attachments")
                refuse_oversized(prompt_messages("", records[-1:]), facts, spec)
                budget = ContextBudget.of(facts.context_tokens, new_tokens(params, facts))
                if is_cut:
                    raise ContextOverflow(tokens=None, limit=budget.window - 1)
                count = partial(model.engine.count_tokens, client=client, spec=spec)
                prompt = await fit(
                    system,
                    records,
                    budget=budget,
                    count=count,
                    inputs=ModelInputs.of(facts),
                    keeps_all=generation.keeps_all,
                )
            return msgspec.structs.replace(prompt, model=model.name)

        try:
            return await self.choice.first_that_can(live.record.model, fitted)
        except BadParams as refused:
            if refused.field != "continues":
                raise
            raise BadParams(str(refused).replace("`continues`", "`continue`"), field="continue") from None


def new_tokens(params: Params, facts: ModelFacts) -> int:
    """Return the maximum number of tokens of a reply."""
    return params.max_new_tokens or facts.defaults.max_new_tokens or REPLY_TOKENS


async def fallback_request(choice: ModelChoice, request: Request, *, shortens: bool) -> Request | None:
    """Return the request for the next model that serves now and can answer it; None if there is none.

    `shortens`: older exchanges may be left out if that model's window is smaller.
    """
    for model in choice.serving(request):
        try:
            messages = await _fitting(model.engine, request, shortens=shortens)
        except (EngineError, BadParams, ContextOverflow):
            continue
        left = request.fallbacks[request.fallbacks.index(model.name) + 1 :]
        return msgspec.structs.replace(request, model=model.name, fallbacks=left, messages=messages)
    return None


async def _fitting(engine: Engine, request: Request, *, shortens: bool) -> tuple[Message, ...]:
    """Return the messages, shortened to the model's window. Raises EngineError, BadParams, ContextOverflow."""
    facts = await engine.ready()
    refuse_unsupported(request.params, facts, request.spec, request.messages)
    budget = ContextBudget.of(facts.context_tokens, new_tokens(request.params, facts))
    count = partial(engine.count_tokens, client=request.client, spec=request.spec)
    return await shortened(request.messages, budget=budget, count=count, keeps_all=not shortens)


def texts_of(messages: Sequence[Message], spec: ReplySpec = PLAIN) -> list[str]:
    """Return all texts of a prompt: of messages, reasoning, calls, and the tools."""
    texts = [message.content for message in messages]
    texts += [message.reasoning for message in messages if message.reasoning]
    texts += [text for message in messages for call in message.calls for text in (call.name, call.arguments)]
    texts += [
        text for tool in spec.shown_tools for text in (tool.name, tool.description, tool.parameters) if text
    ]
    return texts


def refuse_oversized(messages: Sequence[Message], facts: ModelFacts, spec: ReplySpec = PLAIN) -> None:
    """Refuse a prompt that has too many bytes to fit, before tokenizing it, which takes long. Raises ContextOverflow.

    Templates may strip white space, so a prompt may have twice the limit with it. Reasoning, which they may drop, does not count.
    """
    max_bytes = facts.context_tokens * LONGEST_TOKEN_BYTES
    read = [
        msgspec.structs.replace(message, reasoning="") if message.reasoning else message
        for message in messages
    ]
    texts = texts_of(read, spec)
    if _length(texts) > 2 * max_bytes or _length(text.strip() for text in texts) > max_bytes:
        raise ContextOverflow(tokens=None, limit=facts.context_tokens - 1)


def _length(texts: Iterable[str]) -> int:
    """Return the length in bytes of UTF-8."""
    return sum(len(text.encode()) for text in texts)


def refuse_unsupported(
    params: Params, facts: ModelFacts, spec: ReplySpec = PLAIN, messages: Sequence[Message] = ()
) -> None:
    """Refuse what this model would ignore or can't do. Raises BadParams, which names the field."""
    field = not_served(params, facts) or spec_not_served(spec, facts) or messages_not_served(messages, facts)
    if field is not None:
        other = f"`{field}` can't be followed by the engine behind this server."
        raise BadParams(_UNSUPPORTED.get(field, other), field=field)


@contextmanager
def as_refusals() -> Iterator[None]:
    """Turn the engine's errors about a prompt into refusals. Raises BadParams, Overloaded, EngineDown."""
    try:
        yield
    except PromptRejected as error:
        raise BadParams(_why(error), field=error.field or None) from error
    except EngineBusy as busy:
        raise Overloaded(str(busy), retry_after_ms=retry_after_ms(busy)) from busy
    except EngineError as error:
        raise EngineDown(str(error), retry_after_ms=retry_after_ms(error)) from error


def _why(error: PromptRejected) -> str:
    return str(error) if error.field else f"The model's chat template refuses these messages: {error}"


def retry_after_ms(error: EngineError) -> int | None:
    """Return the milliseconds until an engine may take requests again, if it said so."""
    after_s = error.retry_after_s if isinstance(error, EngineUnavailable) else None
    return None if after_s is None else ceil(after_s * 1000)


OPERATOR_SALT = "\x00operator"
"""Ends the salt of prompts under the operator's system prompt. Client ids have no such character."""
USER = "\x00user"
"""Separates the owner and the digest of a user's name in the salt. The name may have any characters."""


def engine_request(
    turn_id: str,
    messages: tuple[Message, ...],
    params: Params,
    *,
    owner: str,
    group: str,
    conversation_id: str,
    system: SystemPrompt,
    model: str,
    fallbacks: tuple[str, ...],
    spec: ReplySpec = PLAIN,
    user: str = "",
) -> Request:
    """Return an owner's request, for any conversation.

    A client's own system prompt is never shared. Sharing is by matching tokens, and `cached_tokens` would tell clients how much
    of another's secret instructions they have guessed. Prompts under the operator's system prompt have a salt of their own: a
    client can't guess the operator's instructions with system prompts of its own. `user`: one of an application's many users
    behind one key, none of whom may guess another's prompts.
    """
    salt = f"{owner}{USER}{sha256(user.encode()).hexdigest()}" if user else owner
    return Request(
        turn_id,
        messages,
        params,
        cache_salt=salt + OPERATOR_SALT if system.is_shared else salt,
        shares_system=system.is_shared,
        client=client_key(owner, group),
        conversation=conversation_id,
        model=model,
        fallbacks=fallbacks,
        spec=spec,
    )


def client_key(owner: str, group: str) -> str:
    """Return the name by which the engine is fair to an owner, and to the owner's group."""
    return f"{group}{GROUP_SEPARATOR}{owner}" if group else owner


class SystemPrompt(msgspec.Struct, frozen=True):
    """The system prompt of a turn. `named`: the conversation's own; empty: none."""

    named: str
    operators: str

    @property
    def text(self) -> str:
        """The text for the model, which may be empty."""
        return self.named or self.operators

    @property
    def is_shared(self) -> bool:
        """Whether the text is the operator's, even if the conversation names the same."""
        return bool(self.operators) and not self.named
