"""A request's answers to approvals, checked against the response that asked. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from connections.api.errors import Problem, invalid
from connections.protocol.errors import field_message
from connections.responses.requests.items import call_id_in
from connections.responses.requests.models import Item
from connections.responses.stored.ids import ResponseRef, ref_of_item
from connections.responses.stored.notes import needs_approval
from sessions.events import CallState
from sessions.records import CallRecord, digest
from sessions.turn.tool_calls import Decision

APPROVAL_RESPONSE = "mcp_approval_response"
_SETTLED_REASONS = {
    CallState.DENIED: "was answered before: the call was denied. Continue from the response that followed.",
    CallState.EXPIRED: "was not answered in time. The call was not carried out, and the conversation went on.",
    CallState.CANCELLED: "is of a call that was cancelled. It was not carried out.",
}
_ALLOWED = "was answered before: the call was allowed. Continue from the response that followed."


def split_approvals(given: str | Sequence[Item]) -> tuple[str | list[Item], list[tuple[int, Item]]]:
    """Separate an input from its answers to approvals, with their places. Answers next to their calls are history."""
    if isinstance(given, str):
        return given, []
    ran = {call_id_in(item.id or "") for item in given if item.type == "mcp_call"}
    answers = [
        (number, item)
        for number, item in enumerate(given)
        if item.type == APPROVAL_RESPONSE and call_id_in(item.approval_request_id or "") not in ran
    ]
    places = {number for number, _ in answers}
    return [item for number, item in enumerate(given) if number not in places], answers


def approval_decisions(
    answers: Sequence[tuple[int, Item]], ref: ResponseRef | None, calls: Sequence[CallRecord]
) -> tuple[Decision, ...]:
    """Return the decisions. `ref`: of the continued response; `calls`: those that it ended with. Raises Problem."""
    decisions: dict[str, Decision] = {}
    for number, item in answers:
        decision = _decision(item, f"input[{number}]", ref, calls)
        if decision.call_id in decisions:
            field = f"input[{number}].approval_request_id"
            raise invalid(field, field_message(field, "is answered twice."))
        decisions[decision.call_id] = decision
    return tuple(decisions.values())


def _decision(item: Item, where: str, ref: ResponseRef | None, calls: Sequence[CallRecord]) -> Decision:
    field = f"{where}.approval_request_id"
    named = item.approval_request_id or ""
    call_id = call_id_in(named)
    found = next((call for call in calls if call.call_id == call_id and needs_approval(call)), None)
    if found is None or ref is None or ref_of_item(named) != ref:
        why = "names no approval that the response before this one asks for: send that as `previous_response_id`."
        raise invalid(field, field_message(field, why), code="approval_not_found")
    shown = named.rpartition("-")[2]
    if shown != digest(found.args):
        raise invalid(
            field, field_message(field, "is of other arguments than the call has."), code="approval_not_found"
        )
    if item.approve is None:
        raise invalid(f"{where}.approve", field_message(f"{where}.approve", "must be true or false."))
    if found.state is not CallState.WAITING:
        why = field_message(field, _SETTLED_REASONS.get(found.state, _ALLOWED))
        raise Problem(409, why, code=_code(found.state), param=field)
    return Decision(call_id=found.call_id, args_sha256=shown, allow=item.approve)


def _code(state: CallState) -> str:
    return "approval_expired" if state is CallState.EXPIRED else "approval_answered"
