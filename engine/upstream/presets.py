"""The features of kinds of servers, by their documentation and their code, so that operators need not look them up.

Features that depend on how a server was started are left out, such as `priority`, and TGI's formats that are not OpenAI's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.upstream.options import Server

_VLLM: dict[str, Any] = {
    "top_k": True,
    "min_p": True,
    "repetition_penalty": True,
    "min_tokens": True,
    "ignore_eos": True,
    "special_tokens": True,
    "logprobs": True,
    "tools": "all",
    "format": "structured_outputs",
    "reasoning": True,
    "template": True,
    "continue_final_message": True,
    "completions": True,
}

PRESETS: Mapping[Server, Mapping[str, Any]] = {
    # tools need --enable-auto-tool-choice and --tool-call-parser, thoughts --reasoning-parser
    "vllm": _VLLM | {"continuous_usage": True, "cache_salt": True, "tokenize": "../tokenize"},
    # the same engine behind Ray's own types
    "ray-serve": _VLLM,
    # tools need --tool-call-parser, thoughts --reasoning-parser; its grammars are not Lark's
    "sglang": _VLLM | {"format": "sglang", "continuous_usage": True},
    # tools need --jinja; repetition_penalty has another name there, and GBNF is no Lark
    "llama-server": {
        "top_k": True,
        "min_p": True,
        "ignore_eos": True,
        "logprobs": True,
        "tools": "all",
        "format": "json_schema",
        "reasoning": True,
        "template": True,
        "continue_final_message": True,
        "completions": True,
    },
    # its OpenAI endpoint silently drops tool_choice and logit_bias
    "ollama": {
        "logit_bias": False,
        "tools": "auto",
        "format": "json_schema",
        "reasoning": True,
        "completions": True,
    },
    # it turns presence_penalty into a repetition penalty, and ignores logit_bias
    "tgi": {"penalties": False, "logit_bias": False, "logprobs": True, "tools": "all", "completions": True},
    # tools need --dyn-tool-call-parser, thoughts --dyn-reasoning-parser
    "dynamo": {
        "top_k": True,
        "min_p": True,
        "repetition_penalty": True,
        "min_tokens": True,
        "ignore_eos": True,
        "logprobs": True,
        "tools": "all",
        "format": "guided",
        "completions": True,
    },
    # another Midstream, which refuses by name what its own model can't follow
    "midstream": _VLLM | {"any_history": True},
    "openai": {
        "any_history": True,
        "max_completion_tokens": True,
        "logprobs": True,
        "tools": "all",
        "format": "json_schema",
        "reasoning": True,
    },
}


def with_preset(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return an operator's table with the features of its kind of server beside those that it names."""
    preset = {str(server): features for server, features in PRESETS.items()}.get(str(table.get("server")))
    features = table.get("features", {})
    if preset is None or not isinstance(features, Mapping):
        return dict(table)  # its mistakes are found when it is converted to its types
    return {**table, "features": {**preset, **features}}
