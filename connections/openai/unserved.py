"""Fields that would change the text and are not served: each is refused by its name, unless it says what is done anyway. Pure.

Fields that are not here and not served have no effect on the text (`user`, `store`, `metadata`, `prediction`, …) or
are unknown; they pass.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from connections.openai.problems import invalid

NO_TOOLS = "This server does not call tools yet."
NO_SOUND = "This server does not take sound."
_NO_SCHEMA = "This server does not write JSON by a schema yet."
_NO_GRAMMAR = "This server does not write by a grammar yet."
_NO_TEMPLATE = "This server does not let requests change the chat template."
_NO_THINKING = "This server does not steer how a model thinks yet."
_NO_VOICE = "This server does not speak: replies are text."
_LONGEST = 200

_NEUTRAL: Mapping[str, tuple[tuple[object, ...], str]] = {
    # OpenAI's
    "n": ((1,), "This server makes one reply to a request: `n` must be 1."),
    "tools": (([],), NO_TOOLS),
    "tool_choice": (("none", "auto"), NO_TOOLS),
    "functions": (([],), NO_TOOLS),
    "function_call": (("none", "auto"), NO_TOOLS),
    "response_format": (({"type": "text"},), _NO_SCHEMA),
    "frequency_penalty": ((0,), "This server does not apply `frequency_penalty`: it must be 0."),
    "presence_penalty": ((0,), "This server does not apply `presence_penalty`: it must be 0."),
    "logit_bias": (({},), "This server does not apply `logit_bias`."),
    "modalities": ((["text"],), _NO_VOICE),
    "audio": ((), _NO_VOICE),
    "reasoning_effort": (("none",), _NO_THINKING),
    "verbosity": (("medium",), "This server does not apply `verbosity`."),
    "web_search_options": ((), "This server does not search the web."),
    # of other servers of this protocol: thinking
    "reasoning": (({}, {"effort": "none"}, {"enabled": False}), _NO_THINKING),
    "think": ((False,), _NO_THINKING),
    "thinking": (({"type": "disabled"},), _NO_THINKING),
    "enable_thinking": ((False,), _NO_THINKING),
    "thinking_budget": ((0,), _NO_THINKING),
    # how tokens are chosen
    "best_of": ((1,), "This server makes one reply to a request: `best_of` must be 1."),
    "use_beam_search": ((False,), "This server does not search by beams."),
    "length_penalty": ((1,), "This server does not apply `length_penalty`: it must be 1."),
    "repeat_penalty": ((1,), "This server does not apply `repeat_penalty`: use `repetition_penalty`."),
    "min_p": ((0,), "This server does not apply `min_p`: it must be 0."),
    "top_a": ((0,), "This server does not apply `top_a`: it must be 0."),
    "typical_p": ((1,), "This server does not apply `typical_p`: it must be 1."),
    "tfs_z": ((1,), "This server does not apply `tfs_z`: it must be 1."),
    "mirostat": ((0,), "This server does not apply `mirostat`: it must be 0."),
    "dynatemp_range": ((0,), "This server does not apply `dynatemp_range`: it must be 0."),
    "dry_multiplier": ((0,), "This server does not apply `dry_multiplier`: it must be 0."),
    "xtc_probability": ((0,), "This server does not apply `xtc_probability`: it must be 0."),
    "allowed_token_ids": (([],), "This server does not apply `allowed_token_ids`."),
    "bad_words": (([],), "This server does not apply `bad_words`."),
    # where a reply ends, and what is shown of it
    "min_tokens": ((0,), "This server does not apply `min_tokens`: it must be 0."),
    "n_predict": ((-1,), "This server does not apply `n_predict`: use `max_tokens`."),
    "ignore_eos": ((False,), "This server ends a reply where the model does: `ignore_eos` must be false."),
    "stop_token_ids": (([],), "This server does not apply `stop_token_ids`: use `stop`."),
    "include_stop_str_in_output": ((False,), "This server never shows the stop string of a reply."),
    "skip_special_tokens": ((True,), "This server never shows special tokens."),
    "echo": ((False,), "This server does not repeat the prompt."),
    # what the model reads
    "chat_template": ((), _NO_TEMPLATE),
    "chat_template_kwargs": (({},), _NO_TEMPLATE),
    "add_generation_prompt": ((True,), _NO_TEMPLATE),
    "add_special_tokens": ((False,), _NO_TEMPLATE),
    "continue_final_message": ((False,), "This server does not continue a message."),
    "documents": (([],), "This server does not take documents."),
    "truncate_prompt_tokens": ((), "This server never shortens a prompt."),
    # what the model may write
    "guided_json": ((), _NO_SCHEMA),
    "json_schema": ((), _NO_SCHEMA),
    "structured_outputs": ((), _NO_SCHEMA),
    "guided_choice": ((), _NO_GRAMMAR),
    "guided_grammar": ((), _NO_GRAMMAR),
    "guided_regex": ((), _NO_GRAMMAR),
    "grammar": (("",), _NO_GRAMMAR),
    "ebnf": (("",), _NO_GRAMMAR),
    "regex": (("",), _NO_GRAMMAR),
}
_NO_IMAGES = "This server does not take images."
_PARTS: Mapping[str, str] = {
    "image_url": _NO_IMAGES,
    "image": _NO_IMAGES,
    "input_image": _NO_IMAGES,
    "input_audio": NO_SOUND,
    "audio_url": NO_SOUND,
    "video_url": "This server does not take videos.",
    "file": "This server does not take files.",
    "input_file": "This server does not take files.",
    "tool_use": NO_TOOLS,
    "tool_result": NO_TOOLS,
    "reasoning": "This server does not take back what a model thought.",
    "thinking": "This server does not take back what a model thought.",
}
_CHOOSERS = {"tools": "tool_choice", "functions": "function_call"}
_NONE = b'"none"'


def refuse_unserved(fields: Mapping[str, msgspec.Raw]) -> None:
    """Raises Problem, which names the field."""
    for field, (neutral, why) in _NEUTRAL.items():
        if field in fields and not (says(fields[field], neutral) or _is_off(field, fields)):
            raise invalid(field, why, code="unsupported_parameter")


def says(raw: msgspec.Raw, neutral: tuple[object, ...]) -> bool:
    """Whether JSON is null or one of these values; what is longer than all of them is not read."""
    if len(bytes(raw)) > _LONGEST:
        return False
    value = msgspec.json.decode(raw)
    return value is None or any(_same(value, one) for one in neutral)


def _is_off(field: str, fields: Mapping[str, msgspec.Raw]) -> bool:
    """Whether the client forbids the calls that it describes: a reply without any is what it asks for."""
    chooser = fields.get(_CHOOSERS.get(field, ""))
    return chooser is not None and bytes(chooser) == _NONE


def _same(value: object, neutral: object) -> bool:
    """Equal, and no truth value for a number: `true` is not 1."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def no_part(kind: str) -> str:
    """Why a part of a message that is no text is refused."""
    return _PARTS.get(kind, "This server takes text only.")
