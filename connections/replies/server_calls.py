"""Calls of server tools, as pieces of a reply for doors that show them. Pure."""

from __future__ import annotations

import msgspec

from sessions.events import CallState, ShownCall, ToolCall, ToolState
from sessions.records import CallRecord, digest
from sessions.turn.calls import read_as


class ServerCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call in its current state. `args`: the text of a JSON object; `args_sha256`: its hash.

    `is_asked`: a user has to allow it. `output`: the result that the model reads, once it has ended;
    `failed`: it has none. `expires_at`: Unix milliseconds, if it waits for a client.
    """

    call_id: str
    name: str
    args: str
    args_sha256: str
    is_asked: bool
    state: CallState = CallState.WAITING
    output: str = ""
    failed: bool = False
    expires_at: int | None = None

    @classmethod
    def of(cls, told: ToolCall | ShownCall) -> ServerCall:
        """Make one from an event, or from the history."""
        call = cls(
            call_id=told.call_id,
            name=told.name,
            args=told.args,
            args_sha256=told.args_sha256,
            is_asked=told.needs == "approval",
            expires_at=told.expires_at,
        )
        return call if isinstance(told, ToolCall) else call._standing(told)

    @classmethod
    def kept(cls, record: CallRecord) -> ServerCall:
        """Make one from its record in the store."""
        return cls.of(record.shown())

    @classmethod
    def asked(cls, record: CallRecord) -> ServerCall:
        """Make one with the arguments that a user was asked about; it may run with others."""
        return msgspec.structs.replace(cls.kept(record), args=record.args, args_sha256=digest(record.args))

    def after(self, moved: ToolState) -> ServerCall:
        """Return the call after a change."""
        return self._standing(moved)

    @property
    def waits(self) -> bool:
        """Whether it waits for an approval."""
        return self.is_asked and self.state is CallState.WAITING

    def _standing(self, now: ToolState | ShownCall) -> ServerCall:
        if not now.state.is_settled:
            return msgspec.structs.replace(self, state=now.state)
        is_done = now.state is CallState.DONE and now.error is None
        return msgspec.structs.replace(self, state=now.state, output=read_as(now), failed=not is_done)
