"""Unsupported fields that would change the text: each is refused by its name, unless its value has no effect. Pure.

Other unsupported fields have no effect on the text (`store`, `metadata`, `prediction`, …) or are
unknown; they are accepted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from connections.openai.problems import invalid

NO_AUDIO = "This server does not take sound."
_NO_FUNCTIONS = "This server takes `tools` in place of `functions`."
_NO_GRAMMAR = "This server takes grammars in the form of Lark, as `guided_grammar`."
_NO_PATTERN = "This server takes patterns as `guided_regex`."
_NO_SCHEMA = "This server takes schemas as `response_format`."
_NO_TEMPLATE = "This server does not let requests change the chat template."
_NO_BUDGET = "This server does not apply `thinking_budget`: use `reasoning_effort`."
_NO_SPEECH = "This server does not speak: replies are text."
_NO_IDS = "This server takes texts as `prompt`, and no ids of tokens."
_MAX_VALUE_BYTES = 200

_NEUTRAL: Mapping[str, tuple[tuple[object, ...], str]] = {
    # OpenAI's
    "functions": (([],), _NO_FUNCTIONS),
    "function_call": (("none", "auto"), _NO_FUNCTIONS),
    "modalities": ((["text"],), _NO_SPEECH),
    "audio": ((), _NO_SPEECH),
    "web_search_options": ((), "This server does not search the web."),
    # sampling
    "best_of": ((1,), "This server writes as many replies as it gives: `best_of` must be 1."),
    "use_beam_search": ((False,), "This server does not search by beams."),
    "length_penalty": ((1,), "This server does not apply `length_penalty`: it must be 1."),
    "repeat_penalty": ((1,), "This server does not apply `repeat_penalty`: use `repetition_penalty`."),
    "top_a": ((0,), "This server does not apply `top_a`: it must be 0."),
    "typical_p": ((1,), "This server does not apply `typical_p`: it must be 1."),
    "tfs_z": ((1,), "This server does not apply `tfs_z`: it must be 1."),
    "mirostat": ((0,), "This server does not apply `mirostat`: it must be 0."),
    "dynatemp_range": ((0,), "This server does not apply `dynatemp_range`: it must be 0."),
    "dry_multiplier": ((0,), "This server does not apply `dry_multiplier`: it must be 0."),
    "xtc_probability": ((0,), "This server does not apply `xtc_probability`: it must be 0."),
    "allowed_token_ids": (([],), "This server does not apply `allowed_token_ids`."),
    "bad_words": (([],), "This server does not apply `bad_words`."),
    # the end of a reply, and what is shown of it
    "n_predict": ((-1,), "This server does not apply `n_predict`: use `max_tokens`."),
    "stop_token_ids": (([],), "This server does not apply `stop_token_ids`: use `stop`."),
    "include_stop_str_in_output": ((False,), "This server never shows the stop string of a reply."),
    "echo": ((False,), "This server does not repeat the prompt."),
    "thinking_budget": ((0,), _NO_BUDGET),
    # what the model reads
    "suffix": (("",), "This server does not write what stands before a `suffix`."),
    "chat_template": ((), _NO_TEMPLATE),
    "add_special_tokens": ((False,), _NO_TEMPLATE),
    "documents": (([],), "This server does not take documents."),
    "truncate_prompt_tokens": ((), "This server never shortens a prompt."),
    # what the model may write
    "json_schema": ((), _NO_SCHEMA),
    "grammar": (("",), _NO_GRAMMAR),
    "ebnf": (("",), _NO_GRAMMAR),
    "regex": (("",), _NO_PATTERN),
}
_PARTS: Mapping[str, str] = {
    "input_image": "This door does not take images.",
    "input_audio": NO_AUDIO,
    "audio_url": NO_AUDIO,
    "video_url": "This server does not take videos.",
    "file": "This server does not take files.",
    "input_file": "This server does not take files.",
    "tool_use": "This server takes calls as `tool_calls`.",
    "tool_result": "This server takes results of tools as messages of the role tool.",
    "reasoning": "What a model thought belongs to messages of the role assistant alone.",
    "thinking": "What a model thought belongs to messages of the role assistant alone.",
}
_NONE = b'"none"'
_IDS = re.compile(rb"\[\s*(\[|[0-9])")


def reject_unsupported(fields: Mapping[str, msgspec.Raw]) -> None:
    """Raise Problem, which names the field."""
    for field, (neutral, why) in _NEUTRAL.items():
        if field in fields and not (is_neutral(fields[field], neutral) or _is_off(field, fields)):
            raise invalid(field, why, code="unsupported_parameter")
    if "prompt" in fields and _IDS.match(memoryview(fields["prompt"])):
        raise invalid("prompt", _NO_IDS, code="unsupported_parameter")


def is_neutral(raw: msgspec.Raw, neutral: tuple[object, ...]) -> bool:
    """Return whether JSON is null or one of these values; a longer one is not read."""
    if memoryview(raw).nbytes > _MAX_VALUE_BYTES:
        return False
    value = msgspec.json.decode(raw)
    return value is None or any(_same(value, one) for one in neutral)


def _is_off(field: str, fields: Mapping[str, msgspec.Raw]) -> bool:
    """Return whether the client forbids the calls that it describes: it wants a reply without calls."""
    return field == "functions" and bytes(fields.get("function_call", b"")) == _NONE


def _same(value: object, neutral: object) -> bool:
    """Return whether two values are equal, without taking `true` for 1."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def unsupported_part(kind: str) -> str:
    """Return why a message part that is not text is refused."""
    return _PARTS.get(kind, "This server takes text only.")
