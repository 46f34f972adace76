"""Calls of server tools, as pieces of a reply for endpoints that show them. Pure."""

from __future__ import annotations

import msgspec

from sessions.events import CallState, ShownCall, ToolCall, ToolState
from sessions.records import CallRecord, digest
from sessions.turn.tool_calls import result_text


class ServerToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call in its current state. `args`: the text of a JSON object; `args_sha256`: its hash.

    `needs_approval`: a user has to allow it. `output`: the result that the model reads, once it has ended;
    `failed`: it has none. `expires_at`: Unix milliseconds, if it waits for a client.
    """

    call_id: str
    name: str
    args: str
    args_sha256: str
    needs_approval: bool
    state: CallState = CallState.WAITING
    output: str = ""
    failed: bool = False
    expires_at: int | None = None

    @classmethod
    def of(cls, call_event: ToolCall | ShownCall) -> ServerToolCall:
        """Make one from an event, or from the history."""
        call = cls(
            call_id=call_event.call_id,
            name=call_event.name,
            args=call_event.args,
            args_sha256=call_event.args_sha256,
            needs_approval=call_event.needs == "approval",
            expires_at=call_event.expires_at,
        )
        return call if isinstance(call_event, ToolCall) else call._with_state(call_event)

    @classmethod
    def kept(cls, record: CallRecord) -> ServerToolCall:
        """Make one from its record in the store."""
        return cls.of(record.shown())

    @classmethod
    def for_approval(cls, record: CallRecord) -> ServerToolCall:
        """Make one with the arguments that a user was asked about; it may run with others."""
        return msgspec.structs.replace(cls.kept(record), args=record.args, args_sha256=digest(record.args))

    def after(self, moved: ToolState) -> ServerToolCall:
        """Return the call after a change."""
        return self._with_state(moved)

    @property
    def waits(self) -> bool:
        """Whether it waits for an approval."""
        return self.needs_approval and self.state is CallState.WAITING

    def _with_state(self, now: ToolState | ShownCall) -> ServerToolCall:
        if not now.state.is_settled:
            return msgspec.structs.replace(self, state=now.state)
        is_done = now.state is CallState.DONE and now.error is None
        return msgspec.structs.replace(self, state=now.state, output=result_text(now), failed=not is_done)
