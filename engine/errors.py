"""What can go wrong at the engine's door.

EngineError
├── EngineUnavailable   no engine can take the request now (starting, crashed too often, stopped)
│   └── EngineBusy      an upstream has as much to do as it can: nothing is wrong, later is better
├── EngineLost          the engine's process died while it served this request
├── PromptRejected      the messages, or what their reply shall be, are refused: the sender's fault
└── ModelNotUsable      the model can't be served with these settings: the operator's fault, told at the start
"""

from __future__ import annotations

OTHER_ENGINE = "--engine vllm may serve it"
"""What refusals of models name that the engine here does not serve; docs/upstreams.md says how."""


class EngineError(Exception):
    """The root of what the engine's door raises."""


class EngineUnavailable(EngineError):
    """No engine can take the request now. `retry_after_s`: when one might, where it said so."""

    def __init__(self, message: str | None = None, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineBusy(EngineUnavailable):
    """An upstream sheds the request: it has as much to do as it can."""


class EngineLost(EngineError):
    """The engine's process died while it served this request."""


class PromptRejected(EngineError):
    """The chat template or the tokenizer refused these messages, or a grammar can't be compiled.

    `field`: which part of the `ReplySpec` is at fault; empty: the messages are.
    """

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class ModelNotUsable(EngineError):
    """The model can't be served with these settings. The message is for the operator."""
