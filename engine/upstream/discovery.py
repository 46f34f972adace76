"""Asks an OpenAI-compatible server for its models, so that its URL is all that an operator has to give."""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec

LIST_S = 10.0
"""How long a server may take to list its models."""
UNKNOWN_WINDOW = 4096
"""Tokens of context of a model whose server does not report it."""
_SERVERS = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llamacpp": "llama-server",
    "library": "ollama",
    "midstream": "midstream",
    "openai": "openai",
    "system": "openai",
}
"""Kinds of servers, by what each writes into `owned_by` of its models."""
log = logging.getLogger(__name__)


class ListingFailed(Exception):
    """A server's models are not known. The message is for the operator."""


class _ListedModel(msgspec.Struct, frozen=True):
    """A model as servers list it. vLLM and Midstream report `max_model_len`, OpenRouter `context_length`."""

    id: str
    owned_by: str = ""
    max_model_len: int | None = None
    context_length: int | None = None


class _ModelList(msgspec.Struct, frozen=True):
    data: tuple[_ListedModel, ...]


class _Generation(msgspec.Struct, frozen=True):
    n_ctx: int


class _LlamaServer(msgspec.Struct, frozen=True):
    """What llama-server reports of itself: the window that each of its slots has."""

    default_generation_settings: _Generation


def listed_models(url: str, *, key: str | None, key_variable: str) -> list[dict[str, Any]]:
    """Return an operator's table (`UpstreamOptions`) for each model of a server. Raises ListingFailed.

    `url`: with its base path; `key_variable`: where the tables say the key is.
    """
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    try:
        with httpx.Client(headers=headers, timeout=LIST_S) as client:
            answer = client.get(f"{url}/models")
            if answer.status_code in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}:
                raise ListingFailed(
                    f"{url} answers {answer.status_code}: give its API key in the variable {key_variable}."
                )
            models = msgspec.json.decode(answer.raise_for_status().content, type=_ModelList).data
            is_llama = any(model.owned_by == "llamacpp" for model in models)
            slot = _slot_window(client, url) if is_llama else None
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        raise ListingFailed(
            f"{url}/models answers {status}. The URL needs its base path, which is usually /v1."
        ) from error
    except (httpx.HTTPError, OSError) as error:
        why = error or type(error).__name__
        raise ListingFailed(f"{url} does not answer: {why}. Is it running there?") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ListingFailed(f"{url}/models is not a list of models: {error}.") from error
    if not models:
        raise ListingFailed(f"{url} lists no models.")
    windows = [slot or model.max_model_len or model.context_length for model in models]
    largest = max(
        (window for window in windows if window), default=None
    )  # vLLM's adapters have none of their own
    if largest is None:
        log.warning(
            "%s does not report the context of its models: %d tokens are assumed", url, UNKNOWN_WINDOW
        )
    return [
        _table(url, model, window or largest or UNKNOWN_WINDOW, key_variable=key_variable if key else None)
        for model, window in zip(models, windows, strict=True)
    ]


def _table(url: str, model: _ListedModel, window: int, *, key_variable: str | None) -> dict[str, Any]:
    table: dict[str, Any] = {
        "name": f"{urlsplit(url).netloc} {model.id}",
        "url": url,
        "model": model.id,
        "context_tokens": window,
    }
    if (server := _SERVERS.get(model.owned_by)) is not None:
        table["server"] = server
    if key_variable is not None:
        table["key_variable"] = key_variable
    return table


def _slot_window(client: httpx.Client, url: str) -> int | None:
    """Return the window of llama-server's slots; None if it does not report it. Raises httpx.HTTPError."""
    answer = client.get(f"{url.removesuffix('/v1')}/props")
    try:
        return msgspec.json.decode(answer.content, type=_LlamaServer).default_generation_settings.n_ctx
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
