"""What starts a run asks of a turn, and the sentences by which it is refused."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from connections.api.agui.requests import ask_of, run_input
from connections.api.requests import Problem
from engine.messages import Message, Params, Tool, ToolCall
from sessions.running.ephemeral import EphemeralRequest
from tests.connections.factory import limits
from tests.sample_images import PNG

LIMITS = limits()
SEEING = limits(max_images=2)
HELLO = {"id": "1", "role": "user", "content": "Hello!"}
HOLLOW = b'{"threadId":"t","runId":"r","messages":[{"role":"user","content":"Hello"}]}'
CALL = {"id": "c_1", "type": "function", "function": {"name": "look", "arguments": '{"at":1}'}}


def parsed(*messages: dict[str, Any], **fields: Any) -> EphemeralRequest:
    body = {"threadId": "t", "runId": "r", "state": {}, "messages": list(messages) or [HELLO]} | fields
    return ask_of(run_input(json.dumps(body).encode()), LIMITS)


def test_a_thread_is_read_as_it_was_written() -> None:
    assert parsed(
        {"id": "0", "role": "developer", "content": "Be brief."},
        HELLO,
        {"id": "2", "role": "reasoning", "content": "Hm."},
        {"id": "3", "role": "activity", "activityType": "PLAN", "content": {"steps": []}},
        {"id": "4", "role": "assistant", "content": "Let me look.", "toolCalls": [CALL]},
        {"id": "5", "role": "tool", "toolCallId": "c_1", "content": "half", "error": "It broke."},
        {"id": "6", "role": "user", "content": [{"type": "text", "text": "Well?"}]},
    ).messages == (
        Message("system", "Be brief."),
        Message("user", "Hello!"),
        Message(
            "assistant",
            "Let me look.",
            reasoning="Hm.",
            calls=(ToolCall("c_1", "look", '{"at":1}'),),
        ),
        Message("tool", "Error: It broke.\nhalf", call_id="c_1"),
        Message("user", "Well?"),
    )


def test_context_stands_before_the_users_last_words() -> None:
    context = [{"description": "The place", "value": "Oslo"}]
    reply = {"id": "2", "role": "assistant", "content": "Hi."}
    last = {"id": "3", "role": "user", "content": "Weather?"}
    made = parsed(HELLO, reply, last, context=context).messages
    assert [one.content for one in made] == ["Hello!", "Hi.", "The place: Oslo\n\nWeather?"]


def test_tools_and_a_clients_own_fields_say_how_to_answer() -> None:
    props = {"model": "m", "temperature": 0, "max_tokens": 7, "seed": 3, "config": {"theirs": 1}}
    ask = parsed(tools=[{"name": "look", "description": "Looks."}], forwardedProps=props)
    assert ask.spec.tools == (Tool("look", "Looks."),)
    assert ask.params == Params(max_new_tokens=7, do_sample=False, seed=3)


def test_no_run_fails_for_what_its_model_can_not_read() -> None:
    """So the protocol asks; what was passed over is named."""
    seen = {"role": "user", "content": [{"type": "image", "source": {}}, {"type": "text", "text": "Look!"}]}
    body = {"threadId": "t", "runId": "r", "messages": [seen], "resume": [{"interruptId": "i"}]}
    request = run_input(json.dumps(body | {"forwardedProps": "theirs"}).encode())
    ask = ask_of(request, LIMITS)
    assert (ask.messages, ask.ignored) == ((Message("user", "Look!"),), ("messages", "resume"))
    assert parsed(HELLO, resume=[]).ignored == ()


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "source": {"type": "data", "value": PNG.base64, "mimeType": "image/png"}},
        {"type": "image", "source": {"type": "url", "value": PNG.url}},
        {"type": "binary", "mimeType": "image/png", "data": PNG.base64},
        {"type": "binary", "mimeType": "image/png", "url": PNG.url},
    ],
)
def test_a_model_that_takes_images_sees_them_in_each_of_the_protocols_shapes(part: dict[str, Any]) -> None:
    seen = {"role": "user", "content": [{"type": "text", "text": "Look:"}, part, {"type": "audio"}]}
    body = {"threadId": "t", "runId": "r", "messages": [seen]}
    ask = ask_of(run_input(json.dumps(body).encode()), SEEING)
    assert ask.messages == (Message("user", "Look:", images=(PNG.image.moved(5),)),)
    assert ask.ignored == ("messages",)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", HOLLOW.replace(b"Hello", b"\xff")])
def test_what_is_no_run_is_refused(body: bytes) -> None:
    with pytest.raises(Problem):
        run_input(body)


def test_what_thousands_of_messages_said_in_a_row_is_joined_once() -> None:
    """As long as a body may be: joined one by one it would be copied four thousand times over, while everybody waits."""
    one = {"id": "a", "role": "assistant", "content": "x" * 380}
    body = {"threadId": "t", "runId": "r", "messages": [one] * 9_000 + [HELLO]}
    request = run_input(json.dumps(body).encode())
    started = time.process_time()
    joined, hello = ask_of(request, limits(max_content_chars=10_000_000)).messages
    assert time.process_time() - started < 0.5
    assert (len(joined.content), hello.content) == (9_000 * 381 - 1, "Hello!")
