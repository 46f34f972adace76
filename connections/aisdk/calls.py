"""Tool calls in the AI SDK's terms, and its clients' answers to them. Pure."""

from __future__ import annotations

from typing import Any, assert_never

import msgspec

from connections.aisdk.chunks import (
    Chunk,
    ToolApprovalRequest,
    ToolInputAvailable,
    ToolOutputAvailable,
    ToolOutputDenied,
    ToolOutputError,
)
from sessions.events import CallState, ShownCall, ToolCall, ToolState

_WORDS = {
    CallState.CANCELLED: "The call was cancelled.",
    CallState.EXPIRED: "Nobody answered the call in time.",
    CallState.LOST: "The call was started, and its outcome is not known.",
}


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A call, as far as a stream needs it.

    `is_allowed`: its client allowed it; `is_answered`: its client settled it. Its state may change later.
    """

    call_id: str
    name: str
    args: str
    args_sha256: str
    is_server: bool
    needs_approval: bool
    state: CallState = CallState.WAITING
    content: str | None = None
    error: str | None = None
    is_allowed: bool = False
    is_answered: bool = False

    @classmethod
    def of(cls, event: ToolCall | ShownCall) -> Call:
        """Make one from an event, or from the history."""
        call = cls(
            call_id=event.call_id,
            name=event.name,
            args=event.args,
            args_sha256=event.args_sha256,
            is_server=event.where == "server",
            needs_approval=event.needs == "approval",
        )
        if isinstance(event, ToolCall):
            return call
        return msgspec.structs.replace(call, state=event.state, content=event.content, error=event.error)

    def after(self, change: ToolState) -> Call:
        """Return the call after a change."""
        return msgspec.structs.replace(self, state=change.state, content=change.content, error=change.error)

    @property
    def waits_for_client(self) -> bool:
        """Whether it waits until its client answers."""
        if self.state.is_settled or self.is_answered:
            return False
        return not self.is_server or self.waits_for_approval

    @property
    def waits_for_approval(self) -> bool:
        """Whether it waits for an approval."""
        return self.needs_approval and self.state is CallState.WAITING and not self.is_allowed

    @property
    def approval_id(self) -> str:
        """The id of its approval: it names the arguments that are shown, so no others can be meant."""
        return f"{self.call_id}.{self.args_sha256}"

    def begun(self) -> list[Chunk]:
        """Return the chunks that begin the call."""
        available = ToolInputAvailable(
            tool_call_id=self.call_id,
            tool_name=self.name,
            input=msgspec.Raw(self.args.encode()),
            provider_executed=self.is_server,
        )
        if not self.waits_for_approval:
            return [available]
        return [available, ToolApprovalRequest(approval_id=self.approval_id, tool_call_id=self.call_id)]

    def outcome(self) -> list[Chunk]:
        """Return the chunks of its outcome; none while it continues."""
        match self.state:
            case CallState.WAITING | CallState.RUNNING:
                return []
            case CallState.DENIED:
                return [ToolOutputDenied(tool_call_id=self.call_id)]
            case CallState.DONE if self.error is None:
                output = output_of(self.content or "")
                return [
                    ToolOutputAvailable(
                        tool_call_id=self.call_id, output=output, provider_executed=self.is_server
                    )
                ]
            case CallState.DONE | CallState.CANCELLED | CallState.EXPIRED | CallState.LOST:
                return [
                    ToolOutputError(
                        tool_call_id=self.call_id,
                        error_text=self.error or _WORDS.get(self.state, ""),
                        provider_executed=self.is_server,
                    )
                ]
            case _:
                assert_never(self.state)

    def part(self) -> dict[str, Any]:
        """Return the call as a part of a UI message."""
        part: dict[str, Any] = {
            "type": f"tool-{self.name}",
            "toolCallId": self.call_id,
            "state": "input-available",
            "input": msgspec.Raw(self.args.encode()),
        }
        if self.is_server:
            part["providerExecuted"] = True
        if self.waits_for_approval:
            return part | {"state": "approval-requested", "approval": {"id": self.approval_id}}
        for event in self.outcome():
            match event:
                case ToolOutputAvailable():
                    part |= {"state": "output-available", "output": event.output}
                case ToolOutputError():
                    part |= {"state": "output-error", "errorText": event.error_text}
                case _:
                    approval = {"id": self.approval_id, "approved": False}
                    part |= {"state": "output-denied", "approval": approval}
        return part


def output_of(content: str) -> Any:
    """Return a result for a client: a JSON object or list as such, anything else as text."""
    if content[:1] in ("{", "["):
        try:
            return msgspec.json.decode(content)
        except (msgspec.DecodeError, RecursionError):
            return content
    return content


def content_of(output: Any) -> str:
    """Return the text of a result from a client."""
    return output if isinstance(output, str) else msgspec.json.encode(output).decode()
