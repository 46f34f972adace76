"""Whatever people do in a conversation, templates of the strict families accept the prompt of its next turn."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.messages import PLAIN
from engine.prompts.prompt import PromptBuilder
from engine.text.formats import detect_format
from engine.upstream.completions import prompt_of
from engine.upstream.options import Features
from sessions.events import CallState
from sessions.records import CallRecord, MessageRecord
from sessions.turn.prompt import ModelInputs, prompt_messages
from tests.engine.strict_templates import strict_families

patient = settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
FAMILIES = strict_families()


@cache
def builder(name: str) -> PromptBuilder:
    return PromptBuilder(FAMILIES[name], detect_format(FAMILIES[name]))


def record(number: int, role: str, content: str, **more: object) -> MessageRecord:
    fields = {"message_id": f"m{number}", "parent_id": f"m{number - 1}", "turn_id": "t", "created_at": 0}
    made = {**fields, "role": role, "content": content, "status": "complete", **more}
    return MessageRecord(**made)  # type: ignore[arg-type]


@st.composite
def calls(draw: st.DrawFn) -> CallRecord:
    state = draw(st.sampled_from(CallState))
    content = "42" if state is CallState.DONE else None
    fields = {"index": 0, "where": "client", "needs": "result", "off": 0, "tokens": 1, "seq": 1}
    made = {**fields, "call_id": draw(st.sampled_from(["call_1", "call_2"])), "name": "add", "args": "{}"}
    return CallRecord(**made, state=state, content=content)  # type: ignore[arg-type]


@st.composite
def branches(draw: st.DrawFn) -> list[MessageRecord]:
    """Each message has the replies of its rounds of calls. A stop leaves any part of the last one.

    An edit and another branch go on from an earlier message, of any role.
    """
    records: list[MessageRecord] = []
    for content in draw(st.lists(st.sampled_from(["Hello.", "Go on.", "Wait!"]), min_size=1, max_size=5)):
        if draw(st.integers(0, 4)) == 0:
            records = records[: draw(st.integers(0, len(records)))]
        records.append(record(len(records), "user", content))
        for _ in range(draw(st.integers(0, 3))):
            text, reasoning_off = (
                draw(st.sampled_from(["", " ", "Let me see."])),
                draw(st.sampled_from(["", "Hm."])),
            )
            called = tuple(draw(st.lists(calls(), max_size=2, unique_by=lambda call: call.call_id)))
            records.append(record(len(records), "assistant", text, reasoning=reasoning_off, calls=called))
    return [*records, record(len(records), "user", "And now?")]


SYSTEMS = st.sampled_from(["", "Be brief."])


@pytest.mark.parametrize("name", sorted(FAMILIES))
@patient
@given(SYSTEMS, branches(), st.builds(ModelInputs, tools=st.booleans()))
def test_the_next_message_is_answered(
    name: str, system: str, records: list[MessageRecord], inputs: ModelInputs
) -> None:
    prompt = prompt_messages(system, records, inputs=inputs)
    assert "And now?" in builder(name).rendered(prompt)
    if records[-2:-1] and records[-2].calls:
        results = prompt_messages(system, records[:-1], inputs=inputs)
        assert builder(name).rendered(results)


@pytest.mark.parametrize(
    ("name", "inputs"),
    [("devstral", ModelInputs()), ("llama", ModelInputs(tools=False)), ("gemma 3", ModelInputs(tools=False))],
)
@patient
@given(SYSTEMS, branches())
def test_an_upstream_of_these_families_answers_it_too(
    name: str, inputs: ModelInputs, system: str, records: list[MessageRecord]
) -> None:
    """Its template can't be tried here, so it gets what the strictest ones take."""
    prompt = prompt_messages(system, records, inputs=inputs)
    messages = prompt_of(prompt, PLAIN, Features())["messages"]
    render: Callable[..., str] = FAMILIES[name].apply_chat_template
    assert "And now?" in render(messages, tokenize=False, add_generation_prompt=True)
