"""How the replies of a session are made, in the session's words and in a turn's. Pure."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from connections.openai.unserved import says
from connections.realtime.client_events import NULL, ResponseWishes, SessionWishes, Tokens, Wishes
from connections.realtime.problems import NO_TOOLS, Invalid
from connections.wire import frames, params
from connections.wire.errors import BadParams

_NEUTRAL: dict[str, tuple[tuple[object, ...], str]] = {
    "tools": (([],), NO_TOOLS),
    "tool_choice": (("none", "auto"), NO_TOOLS),
    "prompt": ((), "This server keeps no prompts: use instructions."),
    "reasoning": ((), "This server does not steer how a model thinks yet."),
    "input": ((), "This server answers the items of the conversation: create them first."),
}
_NAMES = {
    "params.system": "instructions",
    "params.max_new_tokens": "max_output_tokens",
    "params.temperature": "temperature",
}


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """`instructions` unset: the conversation's own, or the operator's."""

    instructions: str | UnsetType = UNSET
    max_output_tokens: Tokens = "inf"
    temperature: float | None = None

    def updated(self, wishes: Wishes) -> Settings:
        """What is wished for holds now, all else as it was."""
        changed: dict[str, object] = {}
        if not isinstance(wishes.instructions, UnsetType):
            changed["instructions"] = wishes.instructions or ""
        if not isinstance(wishes.max_output_tokens, UnsetType):
            changed["max_output_tokens"] = (
                "inf" if wishes.max_output_tokens is None else wishes.max_output_tokens
            )
        if not isinstance(wishes.temperature, UnsetType):
            changed["temperature"] = wishes.temperature
        return msgspec.structs.replace(self, **changed)

    def params(self) -> frames.Params:
        """What a turn is asked for."""
        length = self.max_output_tokens
        system = None if isinstance(self.instructions, UnsetType) else self.instructions
        return frames.Params(
            max_new_tokens=None if length == "inf" else length, temperature=self.temperature, system=system
        )


def of_session(settings: Settings, wishes: SessionWishes, limits: frames.Limits) -> Settings:
    """What holds behind a `session.update`. Raises Invalid, which names the field; nothing holds then."""
    if wishes.type != "realtime":
        raise Invalid("must be realtime.", field="session.type")
    return _checked(settings, wishes, limits, "session")


def of_response(settings: Settings, wishes: ResponseWishes, limits: frames.Limits) -> Settings:
    """What holds for one reply. Raises Invalid, which names the field."""
    if wishes.conversation not in (None, "auto"):
        raise Invalid(
            "must be auto: a response is always a part of its conversation.",
            field="response.conversation",
            code="unsupported_parameter",
        )
    return _checked(settings, wishes, limits, "response")


def _checked(settings: Settings, wishes: Wishes, limits: frames.Limits, where: str) -> Settings:
    for field, (neutral, why) in _NEUTRAL.items():
        if not says(getattr(wishes, field, NULL), neutral):
            raise Invalid(why, field=f"{where}.{field}", code="unsupported_parameter")
    changed = settings.updated(wishes)
    try:
        params.generation(changed.params(), max_new_tokens=limits.max_new_tokens)
    except BadParams as error:
        field = error.field or ""
        raise Invalid(error.why, field=f"{where}.{_NAMES.get(field, field)}") from None
    return changed
