"""Fields that would change the text and are not served: each is refused by its name, unless it says what is done anyway. Pure.

Fields that are not here and not served have no effect on the text (`user`, `store`, `metadata`, `prediction`, …) or
are unknown; they pass.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from connections.openai.problems import Problem, invalid

_LONGEST = 200

_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    # OpenAI's
    "n": (1,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "audio": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "web_search_options": (),
    # of other servers of this protocol
    "best_of": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "typical_p": (1,),
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "ignore_eos": (False,),
    "echo": (False,),
    "bad_words": ([],),
    "stop_token_ids": ([],),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
}


def refuse_unserved(fields: Mapping[str, msgspec.Raw]) -> None:
    """Raises Problem, which names the field."""
    for field, neutral in _NEUTRAL.items():
        if field in fields and not says(fields[field], neutral):
            raise _unserved(field, neutral)


def says(raw: msgspec.Raw, neutral: tuple[object, ...]) -> bool:
    """Whether JSON is null or one of these values; what is longer than all of them is not read."""
    if len(bytes(raw)) > _LONGEST:
        return False
    value = msgspec.json.decode(raw)
    return value is None or any(_same(value, one) for one in neutral)


def _same(value: object, neutral: object) -> bool:
    """Equal, and no truth value for a number: `true` is not 1."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def _unserved(field: str, neutral: tuple[object, ...]) -> Problem:
    but = f" but as {neutral[0]!r}" if neutral else ""
    return invalid(field, f"{field}: is not served{but}.", code="unsupported_parameter")
