"""Calls of tools that the server runs, as pieces of a reply for doors that tell of them. Pure."""

from __future__ import annotations

import msgspec

from sessions.events import CallState, ShownCall, ToolCall, ToolState
from sessions.records import CallRecord, digest
from sessions.turn.calls import read_as


class ServerCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call, as it stands. `args`: the text of a JSON object; `args_sha256`: of that.

    `is_asked`: a user has to allow it. `output`: what came of it, as the model reads it, once it is over; `failed`: nothing did.
    `expires_at`: Unix milliseconds, where it waits for a client.
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
        """A call as it is told, or as the history shows it."""
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
        """A call as the store has it."""
        return cls.of(record.shown())

    @classmethod
    def asked(cls, record: CallRecord) -> ServerCall:
        """A call with the arguments that somebody was asked about, which may not be those that it runs with."""
        return msgspec.structs.replace(cls.kept(record), args=record.args, args_sha256=digest(record.args))

    def after(self, moved: ToolState) -> ServerCall:
        """The call once it moved."""
        return self._standing(moved)

    @property
    def waits(self) -> bool:
        """Whether somebody has to allow it first."""
        return self.is_asked and self.state is CallState.WAITING

    def _standing(self, now: ToolState | ShownCall) -> ServerCall:
        if not now.state.is_settled:
            return msgspec.structs.replace(self, state=now.state)
        is_done = now.state is CallState.DONE and now.error is None
        return msgspec.structs.replace(self, state=now.state, output=read_as(now), failed=not is_done)
