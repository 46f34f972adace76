"""Why the sessions layer refuses or fails, and whose fault that is.

SessionError
├── Refused                 the request leaves no trace; `code` is the protocol's word for it
│   ├── Busy                a turn runs, and the sender did not ask to interrupt it
│   ├── Conflict            the request contradicts the history
│   ├── ContentTooLong      a message or a result has too many characters
│   ├── ContextOverflow     the message alone does not fit the model's window
│   ├── NotFound            no such message or conversation of this owner
│   │   └── NotShared       the server shares no conversations
│   ├── ModelNotFound       no such model is served
│   ├── Forbidden           the client may not do this
│   ├── BadParams           a parameter does not suit the model or the conversation
│   ├── Filtered            a filter of the operator refuses the message
│   ├── QueueFull           the maximum number of messages waits in the conversation
│   ├── Overloaded          the server has the maximum number of turns
│   ├── Draining            the server is about to stop
│   ├── StoreDown           the store does not answer, or refuses writes
│   │   └── StoreFault      the store answers, but its data can't be used: waiting does not help
│   ├── EngineDown          no engine can take the turn
│   └── InternalError       a defect of the service
└── OwnershipLost           the replica that writes no longer owns the turn
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class SessionError(Exception):
    """The root of the errors of the sessions layer."""


class Refused(SessionError):
    """A request that leaves no trace. The message is for its sender."""

    code: str
    retryable: ClassVar[bool] = False
    retry_after_ms: int | None = None
    """Milliseconds until a retry is worthwhile."""


class Busy(Refused):
    """A turn runs, and the sender did not ask to interrupt it."""

    code = "busy"
    retryable = True


class Conflict(Refused):
    """The request contradicts what is in the history."""

    code = "conflict"


class ContentTooLong(Refused):
    """A message, or the result of a call, has more characters than the server allows."""

    code = "content_too_long"


class ContextOverflow(Refused):
    """`tokens`: the length of the prompt, if it was counted; `limit`: the room that the window leaves for a prompt."""

    code = "context_overflow"

    def __init__(self, *, tokens: int | None, limit: int) -> None:
        taken = "far more tokens than fit" if tokens is None else f"{tokens} tokens with its frame"
        super().__init__(f"The message is too long: it takes {taken}; the model has room for {limit}.")
        self.tokens = tokens
        self.limit = limit


class NotFound(Refused):
    """The owner has no such message or conversation."""

    code = "not_found"


class NotShared(NotFound):
    """The operator does not allow conversations to be shared."""


class ModelNotFound(Refused):
    """No such model is served. `names`: the served ones."""

    code = "model_not_found"

    def __init__(self, name: str, names: Sequence[str]) -> None:
        served = ", ".join(f'"{one}"' for one in names)
        super().__init__(f'This server has {served}, and no model "{name}".')


class Forbidden(Refused):
    """The client may not do this."""

    code = "forbidden"


class BadParams(Refused):
    """A parameter does not suit the model or the conversation. `field`: its name in the request, if it has one."""

    code = "bad_params"

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class Filtered(Refused):
    """A filter of the operator refuses the message."""

    code = "filtered"


class QueueFull(Refused):
    """The maximum number of messages waits in the conversation."""

    code = "queue_full"
    retryable = True


class Overloaded(Refused):
    """The server, or the upstream behind it, has the maximum number of turns."""

    code = "overloaded"
    retryable = True

    def __init__(self, message: str, *, retry_after_ms: int | None = None) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class Draining(Refused):
    """The server is about to stop."""

    code = "draining"
    retryable = True


class StoreDown(Refused):
    """The store does not answer, or refuses to write."""

    code = "store_unavailable"
    retryable = True


class StoreFault(StoreDown):
    """The store answers, but its data can't be used; waiting does not help.

    A loop that waits for the store must not wait for this. `incident`: the number under which the log has it.
    """

    code = "internal"
    retryable = False

    def __init__(self, *, incident: str) -> None:
        super().__init__(f"An internal error, number {incident}.")
        self.incident = incident


class EngineDown(Refused):
    """No engine can take the turn."""

    code = "engine_unavailable"
    retryable = True

    def __init__(self, message: str, *, retry_after_ms: int | None = None) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class InternalError(Refused):
    """A defect of the service. `incident`: the number under which the log has it."""

    code = "internal"

    def __init__(self, *, incident: str) -> None:
        super().__init__(f"An internal error, number {incident}.")


class OwnershipLost(SessionError):
    """The store no longer knows this replica as the owner of the turn: the write was refused."""
