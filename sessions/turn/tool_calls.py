"""The calls of one reply, from the first until all are settled. Pure; the caller passes the time.

    WAITING ──allow, claim──► RUNNING ──result──► DONE
       │                         ├──────────────► LOST
       ├──────deny───────────────┼──────────────► DENIED
       └──────cancel, expire─────┴──────────────► CANCELLED, EXPIRED

A settled call does not change. A repeated answer gets the same reply; a contradicting one is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from engine.messages import ToolCall
from sessions.errors import Conflict, ContentTooLong
from sessions.events import CallState, Journalled, ShownCall, ToolState
from sessions.events import ToolCall as ToolCalled
from sessions.records import CallRecord, digest
from sessions.turn.message_request import GenerationConfig

RESULTS_CHARS = 256 * 1024
"""Characters of all results of one reply; a further result is refused. Most models' windows hold less."""
CANCELLED = "The call was cancelled."
MAX_CALLS = 128
"""Calls of one reply; further ones are not carried out."""


class Result(msgspec.Struct, frozen=True, kw_only=True, tag="result"):
    """The outcome of a call that a client ran: `content`, or else an `error`.

    `then`: how to generate the reply after the calls; None: like the reply that called.
    """

    call_id: str
    content: str | None = None
    error: str | None = None
    then: GenerationConfig | None = None


class Decision(msgspec.Struct, frozen=True, kw_only=True, tag="decision"):
    """Whether a call may run. `args_sha256`: the hash of the arguments that were shown; `args`: other arguments to run with."""

    call_id: str
    args_sha256: str
    allow: bool
    args: str | None = None


CallAnswer = Result | Decision


class ToolCalls:
    """The calls of one reply, in order."""

    def __init__(self, records: Iterable[CallRecord] = ()) -> None:
        self._records = {record.call_id: record for record in records}
        self.records = tuple(self._records.values())
        """All calls."""

    def __len__(self) -> int:
        return len(self.records)

    @property
    def open(self) -> tuple[CallRecord, ...]:
        """The calls that are not settled."""
        return tuple(record for record in self.records if not record.state.is_settled)

    def get(self, call_id: str) -> CallRecord | None:
        """Return a call by its id; None if there is none."""
        return self._records.get(call_id)

    def put(self, record: CallRecord) -> None:
        """Add a call, or its new state."""
        self._records[record.call_id] = record
        self.records = tuple(self._records.values())

    def keep(self, chars: int) -> None:
        """Drop the calls after an offset in the text."""
        self._records = {record.call_id: record for record in self.records if record.off <= chars}
        self.records = tuple(self._records.values())

    def answered(self, answer: CallAnswer, *, runner: str) -> CallRecord:
        """Return a call after an answer; a repeated answer leaves it as it is.

        `runner`: the replica that runs the call, if the server does. Raises Conflict, ContentTooLong, KeyError.
        """
        call = self._records[answer.call_id]
        moved = answered(call, answer, runner=runner)
        if moved != call and isinstance(answer, Result):
            self._refuse_too_much(answer)
        return moved

    @property
    def result_chars(self) -> int:
        """Characters of all results so far."""
        return sum(len(text) for one in self.records for text in (one.content, one.error) if text)

    def _refuse_too_much(self, result: Result) -> None:
        if self.result_chars + len(result.content or result.error or "") > RESULTS_CHARS:
            raise ContentTooLong(f"The results of one reply may have at most {RESULTS_CHARS} characters.")


def answered(call: CallRecord, answer: CallAnswer, *, runner: str = "") -> CallRecord:
    """Return a call after an answer; a repeated answer leaves it as it is. Raises Conflict."""
    match answer:
        case Result():
            return _with_result(call, answer)
        case Decision():
            return _decided(call, answer, runner)


def _with_result(call: CallRecord, result: Result) -> CallRecord:
    if call.where == "server":
        raise Conflict("The server runs this call, and has its result.")
    if call.state is CallState.DONE:
        if (call.content, call.error) != (result.content, result.error):
            raise Conflict("The call has another result.")
        return call
    _refuse_settled(call)
    if call.state is CallState.WAITING and call.needs == "approval":
        raise Conflict("The call has not been allowed yet.")
    return done(call, content=result.content, error=result.error)


def _decided(call: CallRecord, decision: Decision, runner: str) -> CallRecord:
    if call.needs == "none":
        raise Conflict("The call needs nobody's approval.")
    if decision.args_sha256 != digest(call.args):
        raise Conflict("`args_sha256` is not of the arguments of this call.")
    if call.state is CallState.WAITING:
        return _allowed(call, decision, runner) if decision.allow else _in_state(call, CallState.DENIED)
    was_allowed = call.state in (CallState.RUNNING, CallState.DONE)
    if was_allowed and decision.allow and call.runs_with == _args(call, decision):
        return call
    if call.state is CallState.DENIED and not decision.allow:
        return call
    if not was_allowed:
        _refuse_settled(call)
    raise Conflict("The call was allowed before.")


def _allowed(call: CallRecord, decision: Decision, runner: str) -> CallRecord:
    args = _args(call, decision)
    return msgspec.structs.replace(
        call,
        state=CallState.RUNNING,
        allowed=None if args == call.args else args,
        runner=runner if call.where == "server" else "",
    )


def _args(call: CallRecord, decision: Decision) -> str:
    return call.args if decision.args is None else decision.args


_SETTLED_MESSAGES = {
    CallState.DONE: "The call has its result.",
    CallState.DENIED: "The call was denied.",
    CallState.CANCELLED: CANCELLED,
    CallState.EXPIRED: "The call has expired.",
    CallState.LOST: "The call was lost, since the server that ran it failed.",
}


def _refuse_settled(call: CallRecord) -> None:
    if call.state.is_settled:
        raise Conflict(_SETTLED_MESSAGES[call.state])


def _in_state(call: CallRecord, state: CallState) -> CallRecord:
    return msgspec.structs.replace(call, state=state)


def done(call: CallRecord, *, content: str | None = None, error: str | None = None) -> CallRecord:
    """Return an open call with its outcome."""
    return msgspec.structs.replace(_in_state(call, CallState.DONE), content=content, error=error)


def claimed(call: CallRecord, *, runner: str) -> CallRecord:
    """Return a server tool's call as run by a replica from here on."""
    return msgspec.structs.replace(_in_state(call, CallState.RUNNING), runner=runner)


def cancelled(call: CallRecord) -> CallRecord:
    """Return an open call as cancelled, a settled one as it is."""
    return call if call.state.is_settled else _in_state(call, CallState.CANCELLED)


def lost(call: CallRecord, *, why: str | None = None) -> CallRecord:
    """Return a call as lost: its runner died, or its tool does not know whether it was carried out."""
    return msgspec.structs.replace(_in_state(call, CallState.LOST), error=why)


def expires_at(call: CallRecord) -> int | None:
    """Return when a call that waits for a client expires: Unix ms; None if it does not wait."""
    runs = call.state is CallState.RUNNING and call.where == "server"
    return None if runs or call.state.is_settled else call.expires_at


def expired(call: CallRecord, *, now_ms: int) -> CallRecord:
    """Return a call as expired if it waited for a client for too long, else unchanged."""
    at = expires_at(call)
    return call if at is None or now_ms < at else _in_state(call, CallState.EXPIRED)


def is_runnable(call: CallRecord) -> bool:
    """Return whether the server may start a call: it waits for nobody."""
    return call.where == "server" and call.needs == "none" and call.state is CallState.WAITING


def result_text(call: CallRecord | ShownCall | ToolState) -> str:
    """Return the text that the model reads as a call's result."""
    match call.state:
        case CallState.DONE:
            return f"Error: {call.error}" if call.content is None else call.content
        case CallState.DENIED:
            return "The user did not allow this call. It was not carried out."
        case CallState.EXPIRED:
            return "There was no answer in time. The call was not carried out."
        case CallState.LOST:
            return call.error or "The call was interrupted. Whether it was carried out is not known."
        case _:
            return CANCELLED


def is_object(text: str) -> bool:
    """Whether a text is a JSON object."""
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, RecursionError):
        return False


def as_written(call: CallRecord) -> ToolCall:
    """Return a call as the model wrote it."""
    return ToolCall(call_id=call.call_id, name=call.name, arguments=call.args)


def calls_of(events: Sequence[Journalled]) -> tuple[CallRecord, ...]:
    """Return the calls of a reply as its events left them."""
    calls = ToolCalls()
    for event in events:
        if isinstance(event, ToolCalled):
            calls.put(CallRecord.of(event))
        elif isinstance(event, ToolState) and (known := calls.get(event.call_id)) is not None:
            calls.put(known.after(event))
    return calls.records
