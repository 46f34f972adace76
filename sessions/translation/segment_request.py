"""Makes the request for a segment of a source. Pure.

A translation model gets the text and the languages, a chat model gets a prompt; the target begins with its told part.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from engine.messages import Languages, Message, ModelFacts, Params, Request
from engine.reply_spec import ReplySpec, Translation
from sessions.errors import BadParams
from sessions.interpreting.languages import AUTO, language_code, language_name
from sessions.interpreting.target import SegmentDecode
from sessions.records import Interpreting, MessageRecord
from sessions.turn.message_request import GenerationConfig

PROMPT = "Translate into {target}: {text}"
"""`{target}` and `{source}` are names of languages."""
TOKENS_A_CHAR = 3
SPARE_TOKENS = 32
"""Tokens that any target may have: a model that does not end is stopped."""
THOUGHT_TOKENS = 1024
"""Tokens for reasoning, or a quarter of the window if that is less; chat models are asked to reason least."""
MOST_LISTED = 20
"""Languages that an error lists."""
_ANY = "any language"


def segment_request(
    base: Request,
    interpreting: Interpreting,
    ask: SegmentDecode,
    *,
    prompt: str,
    number: int,
    facts: ModelFacts | None,
) -> Request:
    """Return the request for one segment, the `number`th of its turn. `facts`: the model's."""
    languages = None if facts is None else facts.languages
    thinks = facts is not None and "reasoning" in facts.features
    if languages is None:
        messages = _messages(interpreting, ask.text, ask.prefix, prompt)
        reasoning = "least" if thinks and base.spec.reasoning == "auto" else base.spec.reasoning
        spec = ReplySpec(continues=bool(ask.prefix), reasoning=reasoning)
    else:
        messages = (Message("user", ask.text),)
        translation = msgspec.structs.replace(
            _translation(interpreting, languages, ask.prefix),
            unfinished=not ask.is_closed,
            draft=ask.draft,
            ahead=ask.ahead,
        )
        spec = ReplySpec(translation=translation)
    spare = 0 if facts is None or not thinks else min(THOUGHT_TOKENS, facts.context_tokens // 4)
    return msgspec.structs.replace(
        base,
        request_id=f"{base.request_id}.{number}",
        messages=messages,
        params=_params(base.params, ask.text, spare),
        spec=spec,
        shares_system=False,
        fallbacks=(),
    )


def trial_request(
    message: MessageRecord,
    generation: GenerationConfig,
    interpreting: Interpreting,
    facts: ModelFacts | None,
) -> tuple[MessageRecord, GenerationConfig]:
    """Return a request in place of a source that is still empty, to check the model. `facts`: the model's."""
    known = None if facts is None else facts.languages
    translation = None if known is None else _translation(interpreting, known)
    return (
        msgspec.structs.replace(message, content=PROMPT, parent_id=None),
        msgspec.structs.replace(generation, continues=False, translation=translation),
    )


def refuse_unable(facts: ModelFacts, interpreting: Interpreting) -> None:
    """Raise BadParams if a model can't continue words that were told, or does not know the languages."""
    if (known := facts.languages) is not None:
        if not known.targets:
            why = "This model does not say which languages it translates, so it can't interpret."
            raise BadParams(why, field="model")
        if interpreting.source != AUTO and not known.sources:
            why = "Leave `source` out: this model does not say which languages it reads."
            raise BadParams(why, field="source")
        if interpreting.source != AUTO and language_code(interpreting.source, known.sources) is None:
            raise BadParams(f"`source` is one of {_listed(known.sources)} for this model.", field="source")
        if language_code(interpreting.target, known.targets) is None:
            raise BadParams(f"`target` is one of {_listed(known.targets)} for this model.", field="target")
    elif "continue" not in facts.features:
        why = "This model can't interpret: the server behind it can't continue a reply."
        raise BadParams(why, field="model")


def _translation(interpreting: Interpreting, known: Languages, prefix: str = "") -> Translation:
    """Return the request to a translation model, in its own codes."""
    source = "" if interpreting.source == AUTO else language_code(interpreting.source, known.sources)
    return Translation(language_code(interpreting.target, known.targets) or "", source or "", prefix)


def _listed(known: Sequence[str]) -> str:
    names = ", ".join(known[:MOST_LISTED])
    return f"{names}, …" if len(known) > MOST_LISTED else names


def _messages(interpreting: Interpreting, text: str, prefix: str, prompt: str) -> tuple[Message, ...]:
    source = _ANY if interpreting.source == AUTO else language_name(interpreting.source)
    filled = (
        prompt.replace("{source}", source)
        .replace("{target}", language_name(interpreting.target))
        .replace("{text}", text)
    )
    messages = (Message("user", filled),)
    return (*messages, Message("assistant", prefix)) if prefix else messages


def _params(params: Params, text: str, spare: int) -> Params:
    """Return the parameters: a segment is one line, and so is its translation. `spare`: tokens for reasoning."""
    return msgspec.structs.replace(params, max_new_tokens=most_tokens(text) + spare, stop=("\n",))


def most_tokens(text: str) -> int:
    """Return the maximum number of tokens of a segment's target."""
    return TOKENS_A_CHAR * len(text) + SPARE_TOKENS
