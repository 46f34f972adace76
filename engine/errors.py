"""The errors of the engine's interface.

EngineError
├── EngineUnavailable   no engine can take the request now (starting, crashed too often, stopped)
│   └── EngineBusy      an upstream is overloaded; a later attempt may succeed
├── EngineLost          the engine's process died, or an upstream failed, while it served this request
├── PromptRejected      the messages, or the spec of their reply, are refused: the sender's fault
└── ModelNotUsable      the model can't be served with these settings: the operator's fault, reported at the start
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

OTHER_ENGINE = "--engine vllm or a server that --upstream names may serve it"
"""The advice for models that the built-in engine does not serve; see docs/upstreams.md."""


def install_command(extra: str) -> str:
    """Return the command that installs an extra: of the whole service, or of the gateway where only that is installed."""
    try:
        version("midstream-server")
    except PackageNotFoundError:
        if extra not in {"gguf", "images", "translation"}:  # the gateway has none of these
            return f'pip install "midstream-gateway[{extra}]"'
    return f'pip install "midstream-server[{extra}]"'


class EngineError(Exception):
    """The root of the engine's errors."""


class EngineUnavailable(EngineError):
    """No engine can take the request now. `retry_after_s`: how long until one might, if known."""

    def __init__(self, message: str | None = None, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineBusy(EngineUnavailable):
    """An upstream refused the request, since it is overloaded."""


class EngineLost(EngineError):
    """The engine's process died, or an upstream failed, while it served this request."""


class PromptRejected(EngineError):
    """The chat template or the tokenizer refused these messages, or a grammar can't be compiled.

    `field`: which part of the `ReplySpec` is at fault; empty: the messages are.
    """

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class ModelNotUsable(EngineError):
    """The model can't be served with these settings. The message is for the operator."""
