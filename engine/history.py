"""Makes any history valid for a chat template. Strict templates refuse what a stop, a model switch or a client may leave.

Only the prompt changes, never the stored history. Where possible, later messages don't change how earlier ones are written,
so that the cached keys and values of a shorter history fit a longer one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Literal, NamedTuple

from msgspec.structs import replace

from engine.messages import Message
from engine.vision.image import together

BETWEEN = "\n\n"
"""Separates messages that become one."""

STOPPED_CALL = "The call was stopped. It has no result."
NO_MESSAGE = "(No message.)"
"""A message where a template requires one: the user's before the assistant's, the assistant's between a result and the user's."""


class TemplateRules(NamedTuple):
    """The histories that a template accepts.

    `system`: where system messages may be. `tools`: it shows calls and results. `repeats`: neighbors may have the same role.
    `user_after_tool`: a user's message may follow a result. `opens_with_any`: the user need not speak first, or at all.
    `empty`: the user's messages may be empty. `text_with_calls`: it shows the text of a message with calls.
    """

    system: Literal["anywhere", "first", "nowhere"] = "anywhere"
    tools: bool = True
    repeats: bool = True
    user_after_tool: bool = True
    opens_with_any: bool = True
    empty: bool = True
    text_with_calls: bool = True


UNKNOWN = TemplateRules("first", repeats=False, user_after_tool=False, opens_with_any=False, empty=False)
"""For an upstream's template, which can't be tried: what the strictest templates accept."""


def normalized(
    messages: Sequence[Message], rules: TemplateRules, *, continues: bool = False
) -> list[Message]:
    """Return a history that a template with these rules accepts. `continues`: the last message is continued.

    Every call is followed by its result. Replies with neither text nor calls are left out.
    """
    last = len(messages) - 1
    kept = [
        message
        for n, message in enumerate(messages)
        if message.role != "assistant"
        or message.content.strip()
        or message.calls
        or (continues and n == last)
    ]
    if messages and (not kept or (continues and len(kept) == 1 and kept[0].role == "assistant")):
        kept.insert(0, Message("user", NO_MESSAGE))
    made = list(_placed(_answered(kept, is_open=continues), rules.system))
    if not rules.empty:
        made = [_filled(message) for message in made]
    if not rules.tools:
        made = [_as_text(message) for message in made]
    if not rules.user_after_tool:
        made = list(_closed(made))
    if not rules.opens_with_any:
        made = _opened(made)
    return made if rules.repeats else list(_alternating(made, text_with_calls=rules.text_with_calls))


def _answered(messages: Sequence[Message], *, is_open: bool) -> Iterator[Message]:
    """Yield messages, each call followed by its result. `is_open`: except the calls of the last message.

    Calls in a row with the same id get its results in order, the last call all that are left. A result without a call
    becomes a message of the user's.
    """
    pending: dict[str, list[tuple[int, int]]] = {}
    results: dict[tuple[int, int], list[str]] = {}
    loose: set[int] = set()
    for role, run in groupby(enumerate(messages), lambda one: one[1].role):
        called: dict[str, list[tuple[int, int]]] = {}
        for n, message in run:
            for place, call in enumerate(message.calls):
                called.setdefault(call.call_id, []).append((n, place))
            if role == "tool" and (places := pending.get(message.call_id)):
                results.setdefault(places[0], []).append(message.content)
                pending[message.call_id] = places[1:] or places
            elif role == "tool":
                loose.add(n)
        pending |= called
    for n, message in enumerate(messages):
        if message.role != "tool":
            yield message
        elif n in loose:
            yield Message("user", message.content)
        calls = () if is_open and n == len(messages) - 1 else message.calls
        for place, call in enumerate(calls):
            kept = BETWEEN.join(results.get((n, place), [STOPPED_CALL]))
            yield Message("tool", kept, call_id=call.call_id)


def _placed(messages: Iterable[Message], system: str) -> Iterator[Message]:
    """Yield messages, system prompts only where they may be: others open the user's next message, or become one."""
    waiting: list[Message] = []
    may_lead = system == "first"
    for message in messages:
        if message.role == "system" and system != "anywhere":
            waiting.append(message)
            continue
        if waiting and may_lead:
            yield _joined(waiting)
        elif waiting:
            folded = replace(_joined(waiting), role="user")
            if message.role == "user":
                message = _joined([folded, message])  # noqa: PLW2901 - the same message, with more text
            else:
                yield folded
        waiting, may_lead = [], False
        yield message
    if waiting:
        yield _joined(waiting) if may_lead else replace(_joined(waiting), role="user")


def _filled(message: Message) -> Message:
    """Return a message; an empty one of the user's gets the text `NO_MESSAGE`."""
    is_empty = message.role == "user" and not message.images and not message.content.strip()
    return Message("user", NO_MESSAGE) if is_empty else message


def _as_text(message: Message) -> Message:
    """Return a message, with calls as the assistant's text, or a result as the user's."""
    if message.role == "tool":
        return Message("user", message.content)
    if not message.calls:
        return message
    spelled = [message.content, *(f"{call.name}({call.arguments})" for call in message.calls)]
    return Message("assistant", "\n".join(spelled).strip())


def _closed(messages: Iterable[Message]) -> Iterator[Message]:
    """Yield messages with an assistant's message between a result and the user's next message."""
    last = ""
    for message in messages:
        if last == "tool" and message.role == "user":
            yield Message("assistant", NO_MESSAGE)
        last = message.role
        yield message


def _opened(messages: list[Message]) -> list[Message]:
    """Return messages in which the user speaks first."""
    first = next((n for n, one in enumerate(messages) if one.role != "system"), len(messages))
    if messages and (first == len(messages) or messages[first].role != "user"):
        messages.insert(first, Message("user", NO_MESSAGE))
    return messages


def _alternating(messages: Iterable[Message], *, text_with_calls: bool) -> Iterator[Message]:
    """Yield messages with neighbors of one role joined. A result remains a message, and so do calls that would hide text."""
    for role, neighbors in groupby(messages, lambda message: message.role):
        if role == "tool":
            yield from neighbors
            continue
        *before, last = neighbors
        if before and last.calls and not text_with_calls:
            yield from (_joined(before), Message("user", NO_MESSAGE), last)
        else:
            yield _joined([*before, last])


def _joined(messages: Sequence[Message]) -> Message:
    """Return messages of one role as one; only the last may have calls."""
    if len(messages) == 1:
        return messages[0]
    content, images = together(((one.content, one.images) for one in messages), BETWEEN)
    thought = BETWEEN.join(one.reasoning for one in messages if one.reasoning)
    return Message(messages[0].role, content, reasoning=thought, calls=messages[-1].calls, images=images)
