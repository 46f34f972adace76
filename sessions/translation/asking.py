"""What a model is asked for a segment of a source: a chat model by a prompt, whose answer begins with what was told. Pure."""

from __future__ import annotations

import msgspec

from engine.messages import Message, ModelFacts, Params, Request
from engine.reply_spec import ReplySpec
from sessions.errors import BadParams
from sessions.interpreting.languages import AUTO, language_name
from sessions.interpreting.translation import Ask
from sessions.records import Interpreting, MessageRecord

PROMPT = "Translate into {target}: {text}"
"""`{target}` and `{source}` are names of languages."""
TOKENS_A_CHAR = 3
SPARE_TOKENS = 32
"""So many tokens a target may have: a model that does not come to an end is stopped."""
_ANY = "any language"


def request_for(base: Request, asked: Interpreting, ask: Ask, *, prompt: str, number: int) -> Request:
    """The request for one segment, the `number`th of its turn."""
    return msgspec.structs.replace(
        base,
        request_id=f"{base.request_id}.{number}",
        messages=_messages(asked, ask.text, ask.prefix, prompt),
        params=_params(base.params, ask.text),
        spec=ReplySpec(continues=bool(ask.prefix), reasoning=base.spec.reasoning),
        shares_system=False,
        fallbacks=(),
    )


def as_asked(message: MessageRecord) -> MessageRecord:
    """What stands for a source before there is any, where it is looked whether a model can be asked at all."""
    return msgspec.structs.replace(message, content=PROMPT, parent_id=None)


def refuse_unable(facts: ModelFacts) -> None:
    """Raises BadParams where a model can't go on with words that were told."""
    if "continue" not in facts.features:
        why = "This model can't interpret: the server behind it can't go on with a reply that has begun."
        raise BadParams(why, field="model")


def _messages(asked: Interpreting, text: str, prefix: str, prompt: str) -> tuple[Message, ...]:
    source = _ANY if asked.source == AUTO else language_name(asked.source)
    said = (
        prompt.replace("{source}", source)
        .replace("{target}", language_name(asked.target))
        .replace("{text}", text)
    )
    messages = (Message("user", said),)
    return (*messages, Message("assistant", prefix)) if prefix else messages


def _params(params: Params, text: str) -> Params:
    """A segment is one line, and so is its translation."""
    most = TOKENS_A_CHAR * len(text) + SPARE_TOKENS
    return msgspec.structs.replace(params, max_new_tokens=most, stop=("\n",))
