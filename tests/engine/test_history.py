"""Any history becomes one that strict chat templates accept, and nothing that was said is lost."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from engine.history import NO_MESSAGE, STOPPED_CALL, UNKNOWN, TemplateRules, normalized
from engine.messages import PLAIN, Message, ReplySpec, Tool, ToolCall
from engine.prompts.chat_template import ChatTemplate
from engine.prompts.prompt import PromptBuilder
from engine.text.formats import detect_format
from engine.upstream.completions import prompt_of
from engine.upstream.options import Features
from engine.vision.image import Image, in_order
from tests.engine.strict_templates import strict_families

patient = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
STRICT = TemplateRules("first", repeats=False, user_after_tool=False, opens_with_any=False)
TOOLS = ReplySpec(tools=(Tool("add", "Adds."),))
IDS = st.sampled_from(["call_a", "call_b"])
TEXTS = st.sampled_from(["", " ", "one", "two words", "three\nlines\n\nhere"])


@cache
def builders() -> dict[str, PromptBuilder]:
    return {name: PromptBuilder(made, detect_format(made)) for name, made in strict_families().items()}


@st.composite
def messages(draw: st.DrawFn, images: int = 0) -> Message:
    role, text = draw(st.sampled_from(["system", "user", "assistant", "tool"])), draw(TEXTS)
    match role:
        case "tool":
            return Message("tool", text, call_id=draw(IDS))
        case "system":
            return Message("system", text)
        case "user":
            places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=images)))
            shown = (Image(f"image {n}", "image/png", 1, 1, at) for n, at in enumerate(places))
            return Message("user", text, images=tuple(shown))
    calls = tuple(ToolCall(one, "add", '{"a": 1}') for one in draw(st.lists(IDS, max_size=2)))
    return Message("assistant", text, draw(TEXTS), calls)


def numbered(history: list[Message]) -> list[Message]:
    """Return messages whose texts and images have the number of their message."""
    return [
        replace(
            one,
            content=f"{one.content} #{n}#" if one.content.strip() else one.content,
            images=tuple(replace(image, digest=f"#{n}# {image.digest}") for image in one.images),
        )
        for n, one in enumerate(history)
    ]


def seen(history: list[Message]) -> list[tuple[int, str]]:
    """Return the number of each text and image in order, and the image."""
    parts = (
        (part, "") if isinstance(part, str) else (part.digest, part.digest)
        for one in history
        for part in in_order(one.content, one.images)
    )
    return [(int(number), image) for text, image in parts for number in re.findall("#(\\d+)#", text)]


def answers(history: list[Message]) -> Iterator[int]:
    """Yield the numbers of results with text whose calls come before them."""
    called: set[str] = set()
    for n, one in enumerate(history):
        called.update(call.call_id for call in one.calls)
        if one.role == "tool" and one.call_id in called and one.content.strip():
            yield n


user, reply = (lambda text: Message("user", text)), (lambda text: Message("assistant", text))


def calling(*ids: str, text: str = "") -> Message:
    return Message("assistant", text, calls=tuple(ToolCall(one, "add", "{}") for one in ids))


def result(call_id: str, text: str = "42") -> Message:
    return Message("tool", text, call_id=call_id)


@pytest.mark.parametrize("name", sorted(builders()))
@pytest.mark.parametrize("spec", [PLAIN, TOOLS], ids=["without tools", "with tools"])
@patient
@given(history=st.lists(messages(), min_size=1, max_size=8), last=TEXTS)
def test_strict_templates_accept_any_history(
    name: str, spec: ReplySpec, history: list[Message], last: str
) -> None:
    builder = builders()[name]
    assert builder.rendered([*history, user(last)], spec if "tools" in builder.features else PLAIN)
    assert builder.rendered(history)


@pytest.mark.parametrize("name", ["devstral", "qwen", "gemma 3"])
@patient
@given(history=st.lists(messages(), max_size=8), last=TEXTS)
def test_strict_templates_of_an_upstream_accept_any_history(
    name: str, history: list[Message], last: str
) -> None:
    """Its template can't be tried here, so it gets what the strictest ones accept."""
    has_tools = "tools" in builders()[name].features
    known = [one for one in history if has_tools or not (one.calls or one.role == "tool")]
    requested = prompt_of([*known, user(last)], PLAIN, Features())["messages"]
    assert strict_families()[name].apply_chat_template(requested, tokenize=False)


def test_an_upstream_that_accepts_any_history_gets_late_system_messages_as_they_are() -> None:
    history = [
        reply("Hello."),
        user(""),
        Message("system", "Be brief."),
        user("a"),
        calling("x"),
        result("x"),
        user("b"),
    ]
    requested = prompt_of(history, PLAIN, Features(any_history=True))["messages"]
    assert [one["role"] for one in requested] == [one.role for one in history]


@pytest.mark.parametrize("name", sorted(builders()))
@patient
@given(history=st.lists(messages(), max_size=8))
def test_a_reply_to_any_history_is_continued(name: str, history: list[Message]) -> None:
    assert builders()[name].rendered([*history, reply("so far")], ReplySpec(continues=True))


@pytest.mark.parametrize(
    "rules",
    [
        *(STRICT, STRICT._replace(text_with_calls=False), UNKNOWN, TemplateRules()),
        STRICT._replace(system="nowhere", tools=False),
    ],
)
@patient
@given(history=st.lists(messages(images=2), max_size=8))
def test_nothing_that_was_said_is_lost_and_a_valid_history_stays_as_it_is(
    rules: TemplateRules, history: list[Message]
) -> None:
    history = numbered(history)
    made = normalized(history, rules)
    assert sorted(seen(made)) == sorted(seen(history))
    assert not rules.tools or set(answers(history)) <= {
        number for number, _ in seen([one for one in made if one.role == "tool"])
    }
    of_users = [number for number, one in enumerate(history) if one.role == "user"]
    assert [one for one in seen(made) if one[0] in of_users] == [
        one for one in seen(history) if one[0] in of_users
    ]
    assert sum(len(one.calls) for one in made) == sum(len(one.calls) for one in history) * rules.tools
    assert normalized(made, rules) == made


@pytest.mark.parametrize(
    ("history", "made"),
    [
        ([user("a"), user("b")], [user("a\n\nb")]),
        ([user("a"), reply(""), user("b")], [user("a\n\nb")]),
        (
            [user("a"), calling("x"), user("b")],
            [user("a"), calling("x"), result("x", STOPPED_CALL), reply(NO_MESSAGE), user("b")],
        ),
        (
            [user("a"), calling("x"), user("b"), result("x")],
            [user("a"), calling("x"), result("x"), reply(NO_MESSAGE), user("b")],
        ),
        (
            [user("a"), calling("x", "y"), result("y"), reply("b"), calling("x"), result("x", "43")],
            [
                *(user("a"), calling("x", "y"), result("x", STOPPED_CALL), result("y")),
                *(calling("x", text="b"), result("x", "43")),
            ],
        ),
        (
            [user("a"), calling("x", "x"), result("x", "Paris 20"), result("x", "Rome 30")],
            [user("a"), calling("x", "x"), result("x", "Paris 20"), result("x", "Rome 30")],
        ),
        (
            [user("a"), calling("x"), calling("x"), result("x", "Paris 20"), result("x", "Rome 30")],
            [user("a"), calling("x"), result("x", "Paris 20"), calling("x"), result("x", "Rome 30")],
        ),
        (
            [user("a"), calling("x"), result("x", "Wait."), result("x", "43")],
            [user("a"), calling("x"), result("x", "Wait.\n\n43")],
        ),
        ([user("a"), reply("b"), reply("c"), user("d")], [user("a"), reply("b\n\nc"), user("d")]),
        ([user("a"), result("x"), user("b")], [user("a\n\n42\n\nb")]),
        ([reply("b"), user("c")], [user(NO_MESSAGE), reply("b"), user("c")]),
        (
            [Message("system", "s"), Message("system", "t"), user("a"), Message("system", "u"), user("b")],
            [Message("system", "s\n\nt"), user("a\n\nu\n\nb")],
        ),
        ([], []),
    ],
)
def test_what_strict_templates_refuse_is_told_in_a_form_that_they_take(
    history: list[Message], made: list[Message]
) -> None:
    assert normalized(history, STRICT) == made


@pytest.mark.parametrize("name", ["mistral", "devstral", "qwen", "llama"])
def test_an_answer_before_a_call_is_in_the_prompt(name: str) -> None:
    """Mistral's template leaves out the text of a message with calls."""
    history = [user("a"), reply("A long answer."), calling("x"), result("x"), reply("c"), user("d")]
    assert "A long answer." in builders()[name].rendered(history, TOOLS)


def test_without_a_system_role_the_prompt_begins_the_users_message_and_images_keep_their_places() -> None:
    image = Image("d", "image/png", 1, 1, at=2)
    requested = Message("user", "a\nb", images=(image,))
    (made,) = normalized([Message("system", "Be brief."), requested], TemplateRules("nowhere"))
    assert (made.content, made.images[0].at) == ("Be brief.\n\na\nb", 13)
    assert normalized([Message("system", "Be brief.")], TemplateRules("nowhere")) == [user("Be brief.")]


@pytest.mark.parametrize("rules", [STRICT, UNKNOWN])
def test_no_reply_is_reported_as_stopped_where_a_client_adds_text_to_a_result(rules: TemplateRules) -> None:
    """As Anthropic's clients do, in one message."""
    made = normalized([user("a"), calling("x"), result("x"), user("Mind the time.")], rules)
    assert made == [user("a"), calling("x"), result("x"), reply("(No message.)"), user("Mind the time.")]


def test_messages_that_a_template_accepts_are_left_alone() -> None:
    history = [Message("system", "s"), user("a"), user("b"), calling("x"), result("x"), user("c")]
    assert normalized(history, TemplateRules()) == history


@patient
@given(st.lists(st.sampled_from(["user", "stop", "reply", "round", "round, stop"]), max_size=8))
def test_later_messages_leave_the_form_of_earlier_ones_alone(steps: list[str]) -> None:
    """So the cached keys and values of one turn fit the next. Only the last message may get more text."""
    history: list[Message] = []
    before: list[Message] = []
    for step in ["user", *steps]:
        history.append(user(f"asked {len(history)}"))
        if step in ("round", "round, stop"):
            history += [calling("x"), result("x")]
        if step in ("round", "reply"):
            history.append(reply("said"))
        now = normalized(history, STRICT)
        assert now[: max(0, len(before) - 1)] == before[:-1]
        before = now


def test_the_rules_of_a_template_are_tried_at_the_start() -> None:
    rules = {name: ChatTemplate(made).rules for name, made in strict_families().items()}
    assert rules["mistral"] == STRICT._replace(text_with_calls=False)
    assert rules["devstral"] == STRICT._replace(empty=False)
    assert rules["gemma"] == STRICT._replace(system="nowhere", tools=False)
    assert rules["gemma 3"] == STRICT._replace(tools=False)
    assert rules["qwen"] == TemplateRules("first", opens_with_any=False)
    assert rules["llama"] == TemplateRules(text_with_calls=False)
