"""An operator's options for an upstream: where it is, what it serves, what it understands, and how long it may take.

The presets are the features of kinds of servers, by their documentation and their code. Features that depend on how a
server was started are left out, such as `priority`, and TGI's formats that are not OpenAI's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from engine.messages import REPLY_TOKENS

Seconds = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]


FormatFields = Literal["off", "json_object", "json_schema", "sglang", "guided", "structured_outputs"]

_TOOLS: dict[str, tuple[str, ...]] = {"off": (), "auto": ("tools.auto",), "all": ("tools",)}
_FORMATS: dict[str, tuple[str, ...]] = {
    "off": (),
    "json_object": ("format.json_object",),
    "json_schema": ("format.json_object", "format.json_schema"),
    "sglang": ("format.json_object", "format.json_schema", "format.regex"),
    "guided": ("format",),
    "structured_outputs": ("format",),
}
Server = Literal[
    "vllm", "sglang", "llama-server", "ollama", "tgi", "ray-serve", "dynamo", "midstream", "openai"
]


class Features(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the upstream understands beyond OpenAI's own fields. What it does not understand is not sent.

    `usage`: a last chunk with totals, requested by `stream_options`; `continuous_usage`: totals in each chunk (vLLM).
    `priority`: which numbers leave its queue first (vLLM: the low ones; SGLang: the high ones).
    `cache_salt`: prompts share keys and values only within one salt (vLLM, SGLang); a digest of ours is sent.
    `affinity_header`: the header by which an inference router keeps a conversation with one replica; a digest of owner and
    conversation is sent. `prompt_cache_key`: OpenAI's field for the same, with the same digest.
    `logprobs`: log-probabilities of tokens and of up to 20 alternatives, in OpenAI's shape.
    `tokenize`: the path that counts prompts exactly, relative to the URL (vLLM, SGLang: "../tokenize").

    `tools`: `auto` if only the model may choose, `all` if `tool_choice` is followed, too.
    `format`: the formats that are followed. `json_object`: any object. `json_schema`: schemas, too, as OpenAI's
    `response_format`. `structured_outputs`, and `guided` of older vLLM: patterns and grammars, too. `sglang`: patterns, too.
    `reasoning`: `reasoning_effort`, with `none`. `template`: `chat_template_kwargs`, and thoughts in the history.
    `continue_final_message`: the last message is continued.
    `penalties`: `presence_penalty` and `frequency_penalty`. These and `logit_bias` are OpenAI's, but some servers lack them.
    `any_history`: messages may have any order of roles, with late system messages. Other upstreams get what strict templates
    accept. `images`: the model sees the images of messages, in `data:` URLs. That depends on the model, so no
    preset has it.
    """

    usage: bool = True
    continuous_usage: bool = False
    top_k: bool = False
    repetition_penalty: bool = False
    logprobs: bool = False
    max_completion_tokens: bool = False
    priority: Literal["off", "low_first", "high_first"] = "off"
    cache_salt: bool = False
    affinity_header: Annotated[str, Meta(pattern=r"^[A-Za-z0-9-]+$")] | None = None
    prompt_cache_key: bool = False
    tokenize: str | None = None
    tools: Literal["off", "auto", "all"] = "all"
    format: FormatFields = "off"
    reasoning: bool = False
    template: bool = False
    continue_final_message: bool = False
    min_p: bool = False
    penalties: bool = True
    logit_bias: bool = True
    min_tokens: bool = False
    ignore_eos: bool = False
    special_tokens: bool = False
    any_history: bool = False
    images: bool = False

    @property
    def of_specs(self) -> tuple[str, ...]:
        """The parts of `ReplySpec` and of messages that are followed, as in `ModelFacts.features`."""
        by_field = {
            "reasoning": self.reasoning,
            "effort": self.reasoning,
            "template": self.template,
            "continue": self.continue_final_message,
            "images": self.images,
        }
        return (
            *_TOOLS[self.tools],
            *_FORMATS[self.format],
            *(name for name, has in by_field.items() if has),
        )

    @property
    def lacks(self) -> tuple[str, ...]:
        """The fields of `Params` that are refused, since dropping them silently would change the text."""
        by_field = {
            "top_k": self.top_k,
            "repetition_penalty": self.repetition_penalty,
            "top_logprobs": self.logprobs,
            "min_p": self.min_p,
            "presence_penalty": self.penalties,
            "frequency_penalty": self.penalties,
            "logit_bias": self.logit_bias,
            "min_tokens": self.min_tokens,
            "ignore_eos": self.ignore_eos,
            "special_tokens": self.special_tokens,
        }
        return tuple(name for name, takes in by_field.items() if not takes)


class Timeouts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """In seconds. `unavailable_s`: how long a request waits for an unreachable upstream. `health_s`: between health checks."""

    connect_s: Seconds = 5.0
    first_token_s: Seconds = 60.0
    between_tokens_s: Seconds = 30.0
    unavailable_s: Seconds = 30.0
    health_s: Seconds = 10.0


class ServerOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A server and its model.

    `url` has its base path, which usually ends with `/v1`. `model` is the server's name for the model, `served_name` the
    clients' name, if it differs. `key_variable`: the environment variable with its key. `ca_file`: certificates to trust in
    place of the system's. `retries`: of a request that failed before its first text, if no other upstream takes it.
    """

    name: Annotated[str, Meta(min_length=1)]
    url: Annotated[str, Meta(pattern=r"^https?://[^/?#@]+(/[^?#]*)?$")]
    model: Annotated[str, Meta(min_length=1)]
    served_name: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    key_variable: Annotated[str, Meta(pattern=r"^[A-Za-z_]\w*$")] | None = None
    ca_file: str | None = None
    retries: Annotated[int, Meta(ge=0, le=10)] = 2
    timeouts: Timeouts = Timeouts()

    @property
    def public_name(self) -> str:
        """The model's name for clients."""
        return self.served_name or self.model


class UpstreamOptions(ServerOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One upstream. Upstreams with the same served name are one model.

    `server`: the kind of server, whose `features` need not be named then (`PRESETS`); those that are named take precedence.
    `max_requests`: the most replies at once; further requests wait here. `max_new_tokens`: the most tokens of a reply if
    its sender names no limit. `bytes_per_token`: for estimates of a prompt's length. `health`: the path for health
    checks, relative to the URL.
    """

    context_tokens: Count
    max_requests: Count = 256
    max_new_tokens: Count = REPLY_TOKENS
    bytes_per_token: Annotated[float, Meta(gt=0)] = 3.0
    health: str = "models"
    server: Server | None = None
    features: Features = Features()


class EmbedderOptions(ServerOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An embedding model and its server.

    `dimensions`: whether a request can choose the length of vectors. `max_inputs`: most texts of one request.
    `max_requests`: most requests at once; further ones wait here.
    """

    dimensions: bool = False
    max_inputs: Annotated[int, Meta(ge=1, le=2048)] = 128
    max_requests: Count = 16


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
}

PRESETS: Mapping[Server, Mapping[str, Any]] = {
    # tools need --enable-auto-tool-choice and --tool-call-parser, thoughts --reasoning-parser
    "vllm": _VLLM | {"continuous_usage": True, "cache_salt": True, "tokenize": "../tokenize"},
    # the same engine behind Ray's own types
    "ray-serve": _VLLM,
    # tools need --tool-call-parser, thoughts --reasoning-parser; its grammars are not Lark's
    "sglang": _VLLM | {"format": "sglang", "continuous_usage": True},
    # tools need --jinja; repetition_penalty has another name there, and GBNF is not Lark
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
    },
    # its OpenAI endpoint silently drops tool_choice and logit_bias
    "ollama": {
        "logit_bias": False,
        "tools": "auto",
        "format": "json_schema",
        "reasoning": True,
    },
    # it turns presence_penalty into a repetition penalty, and ignores logit_bias
    "tgi": {"penalties": False, "logit_bias": False, "logprobs": True, "tools": "all"},
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
    """Return an operator's table with the features of its kind of server added to those that it names."""
    preset = {str(server): features for server, features in PRESETS.items()}.get(str(table.get("server")))
    features = table.get("features", {})
    if preset is None or not isinstance(features, Mapping):
        return dict(table)  # mistakes are found when the table is converted to its types
    return {**table, "features": {**preset, **features}}
