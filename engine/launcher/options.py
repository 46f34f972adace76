"""vLLM's command and environment: the operator's arguments, and the gateway's own, which override them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from engine.upstream.options import PRESETS, Features, Timeouts, UpstreamOptions

NAME = "vllm"
"""The engine's name in logs, in messages and in the facts of the model."""
HOST = "127.0.0.1"
RESERVED = (
    *("host", "port", "uds", "api-key", "root-path", "model", "served-model-name", "config", "headless"),
    *("ssl-keyfile", "ssl-certfile", "ssl-ca-certs", "ssl-cert-reqs", "middleware", "api-server-count"),
)
"""Arguments of `vllm serve` that only the gateway sets: where it listens, who may ask, what it is called."""
SETTINGS_PREFIX = "MIDSTREAM_"
"""The prefix of environment variables that are not passed on, since some hold secrets."""

_NAME = re.compile(r"[a-z][a-z0-9]*([-.][A-Za-z0-9_]+)*")
_PATIENCE_S = 24 * 3600.0
"""How long a request waits for a vLLM that is away. The launcher ends it or brings it back sooner."""


class LaunchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One vLLM. `python`: that of its environment. `model`: vLLM's name of it; `served_name`: the clients' name.

    `arguments`: those of `checked_arguments`. They override `max_batch` (replies at once), `dtype` and `tensor_parallel`.
    """

    python: str
    model: str
    served_name: str
    arguments: tuple[str, ...] = ()
    dtype: str = "auto"
    max_batch: int = 32
    tensor_parallel: int = 1


def checked_arguments(given: Sequence[str]) -> tuple[str, ...]:
    """Return arguments for `vllm serve`, each made from `name=value`, or from only a `name`. Raises ValueError."""
    return tuple(_checked(one) for one in given)


def command_of(options: LaunchOptions, port: int) -> list[str]:
    """Return the command that starts vLLM. If an argument is given twice, vLLM takes the last one."""
    ours = {
        "host": HOST,
        "port": str(port),
        "served-model-name": options.served_name,
    }
    return [
        *(options.python, "-P", "-m", "vllm.entrypoints.cli.main", "serve", options.model),
        *(f"--{name}={value}" for name, value in _defaults(options).items() if not _argument(options, name)),
        *("--enable-prompt-tokens-details", "--disable-uvicorn-access-log"),
        *options.arguments,
        *(f"--{name}={value}" for name, value in ours.items()),
    ]


def environment_of(inherited: Mapping[str, str], python: str, key: str) -> dict[str, str]:
    """Return vLLM's environment: the gateway's, without its settings and its Python, but with the key for vLLM."""
    kept = {
        name: value
        for name, value in inherited.items()
        if not name.startswith(SETTINGS_PREFIX) and name not in {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    }
    programs = python.rpartition("/")[0]
    return {
        "VLLM_NO_USAGE_STATS": "1",
        **kept,
        "PATH": f"{programs}:{kept.get('PATH', '/usr/bin:/bin')}",
        "PYTHONUNBUFFERED": "1",
        "NO_COLOR": "1",
        "VLLM_API_KEY": key,
    }


def upstream_of(options: LaunchOptions, url: str, window: int) -> UpstreamOptions:
    """Return the upstream's options of a vLLM that was started with these, once its window is known."""
    by_priority = _value(options, "scheduling-policy") in {None, "priority"}
    return UpstreamOptions(
        name=NAME,
        url=url,
        model=requested_model(options),
        context_tokens=window,
        max_requests=int(_value(options, "max-num-seqs") or options.max_batch),
        health="../health",
        features=msgspec.convert(
            {
                **PRESETS["vllm"],
                "priority": "low_first" if by_priority else "off",
                "tools": "all" if _calls_tools(options) else "off",
            },
            Features,
        ),
        timeouts=Timeouts(patience_s=_PATIENCE_S),
    )


def _calls_tools(options: LaunchOptions) -> bool:
    """Whether vLLM was told to find calls in replies, and how these are written."""
    return _argument(options, "enable-auto-tool-choice") and _argument(options, "tool-call-parser")


def requested_model(options: LaunchOptions) -> str:
    """Return the model that requests name: the first LoRA adapter, if there is one."""
    adapter = _value(options, "lora-modules")
    return options.served_name if adapter is None else adapter.partition("=")[0]


def _checked(given: str) -> str:
    name, equals, value = given.removeprefix("--").partition("=")
    name = name.replace("_", "-") if "." not in name else name
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"{given!r} is no argument of vLLM: write name=value, or only a name")
    head = name.removeprefix("no-")
    if any(reserved.startswith(head) for reserved in RESERVED):  # vLLM takes beginnings of names, too
        raise ValueError(f"{name!r} is the gateway's business, not an argument for vLLM")
    if name == "max-num-seqs" and not (value.isdecimal() and int(value)):
        raise ValueError(f"{given!r} names no number of replies at once")
    if name == "lora-modules" and not value.partition("=")[2]:
        raise ValueError(f"{given!r} names no adapter: write lora-modules=NAME=PATH")
    if equals and not value:
        raise ValueError(f"{given!r} has no value")
    return f"--{name}{equals}{value}"


def _defaults(options: LaunchOptions) -> dict[str, str]:
    return {
        "dtype": options.dtype,
        "max-num-seqs": str(options.max_batch),
        "tensor-parallel-size": str(options.tensor_parallel),
        "scheduling-policy": "priority",
    }


def _argument(options: LaunchOptions, name: str) -> bool:
    return _value(options, name) is not None


def _value(options: LaunchOptions, name: str) -> str | None:
    """Return the value of the last argument of this name; None if there is none."""
    values = [one.partition("=")[2] for one in options.arguments if one.partition("=")[0] == f"--{name}"]
    return values[-1] if values else None
