"""Prompts are what the model's own template makes of messages, tools, calls and replies that go on."""

from __future__ import annotations

import json
from functools import cache
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from engine.errors import PromptRejected
from engine.messages import PLAIN, Message, ReplySpec, Tool, ToolCall
from engine.prompts.jobs import Prompt
from engine.prompts.prompt import PromptBuilder
from engine.text.formats import detect_format
from tests.engine.chat_families import FAMILIES, QWEN, family
from tests.engine.conftest import small_tokenizer

HELLO, MORE = Message("user", "hello there"), Message("user", "and more?")
ADD = Tool("add", "Adds numbers.", '{"type":"object","properties":{"a":{"type":"integer"}}}')
TOOLS = ReplySpec(tools=(ADD,))


@cache
def tokenizer(name: str) -> PreTrainedTokenizerFast:
    return FAMILIES[name]()


@cache
def builder(name: str) -> PromptBuilder:
    return PromptBuilder(tokenizer(name), detect_format(tokenizer(name)))


def prompt(name: str, *messages: Message, spec: ReplySpec = PLAIN) -> list[int]:
    return builder(name).token_ids(messages, spec)


def text(name: str, *messages: Message, spec: ReplySpec = PLAIN) -> str:
    return str(tokenizer(name).decode(prompt(name, *messages, spec=spec)))


def called(call_id: str = "call_1", arguments: str = '{"a": 1}', **more: str) -> Message:
    """Return a message in which the assistant calls the tool."""
    return Message("assistant", more.pop("content", ""), calls=(ToolCall(call_id, "add", arguments),), **more)


def result(content: str = "42", call_id: str = "call_1") -> Message:
    return Message("tool", content, call_id=call_id)


def ids(name: str, *parts: str) -> list[int]:
    """Return the tokens of a text as a model may spell it that splits it into these parts."""
    return [token for part in parts for token in tokenizer(name).encode(part, add_special_tokens=False)]


TURNS = "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}<s>assistant:{% endif %}"
REFUSES_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + TURNS
DROPS_SYSTEM = TURNS.replace("messages %}", "messages if m.role != 'system' %}")
SYSTEM, HI, REPLY = Message("system", "Be brief."), Message("user", "Hello."), Message("assistant", "Hi!")


def tokenizer_with(template: str) -> PreTrainedTokenizerFast:
    tokenizer = small_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def rendered(template: str, *messages: Message) -> str:
    tokenizer = tokenizer_with(template)
    return str(tokenizer.decode(PromptBuilder(tokenizer).token_ids(messages)))


@pytest.mark.parametrize("template", [REFUSES_SYSTEM, DROPS_SYSTEM])
def test_the_system_prompt_is_folded_where_the_template_has_no_such_role(template: str) -> None:
    assert rendered(template, SYSTEM, HI) == "<s>user: Be brief.\n\nHello.</s><s>assistant:"


def test_the_template_writes_the_prompt() -> None:
    assert rendered(TURNS, SYSTEM, HI) == "<s>system: Be brief.</s><s>user: Hello.</s><s>assistant:"


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_an_added_token_that_the_template_writes_is_plain_text_in_a_message(
    role: Literal["user", "assistant"],
) -> None:
    """As Qwen3's </think>, which is no special token."""
    tokenizer = tokenizer_with(TURNS + "{% if add_generation_prompt %}<think></think>{% endif %}")
    tokenizer.add_tokens(
        [AddedToken("<think>"), AddedToken("</think>"), AddedToken("\n"), AddedToken("<td>")]
    )
    token_ids = PromptBuilder(tokenizer).token_ids([Message(role, "a</think>b\n<td>")])
    assert token_ids.count(tokenizer.convert_tokens_to_ids("</think>")) == 1
    assert token_ids.count(tokenizer.convert_tokens_to_ids("\n")) == 1
    assert token_ids.count(tokenizer.convert_tokens_to_ids("<td>")) == 1
    assert tokenizer.decode(token_ids) == f"<s>{role}: a</think>b\n<td></s><s>assistant:<think></think>"


def test_refusals_name_the_template_or_the_tokenizer() -> None:
    refuses = PromptBuilder(
        tokenizer_with(TURNS + "{% if messages|length > 1 %}{{ raise_exception('one only') }}{% endif %}")
    )
    with pytest.raises(PromptRejected, match="template refused the messages: one only"):
        refuses.token_ids([HI, REPLY])
    with pytest.raises(PromptRejected, match="tokenizer refused the messages"):
        refuses.token_ids([])
    with pytest.raises(PromptRejected, match="tokenizer refused the messages"):
        refuses.token_ids([Message("user", "\ud800")])
    with pytest.raises(PromptRejected, match="empty prompt"):
        PromptBuilder(tokenizer_with("{{ '' }}")).token_ids([HI])


def test_the_system_prompts_tokens_are_those_before_the_users_words() -> None:
    tokenizer = tokenizer_with(TURNS)
    prompts = PromptBuilder(tokenizer)
    whole = prompts.token_ids([SYSTEM, HI])
    count = prompts.system_tokens([SYSTEM, HI], whole)
    assert (
        str(tokenizer.decode(prompts.token_ids([SYSTEM, HI])[:count])) == "<s>system: Be brief.</s><s>user: "
    )
    assert prompts.system_tokens([HI], whole) == prompts.system_tokens([], whole) == 0


def test_only_the_newest_system_prompts_are_remembered() -> None:
    prompts = PromptBuilder(tokenizer_with(TURNS))
    talks = [[Message("system", "x" * n), HI] for n in range(100)]
    counts = [prompts.system_tokens(talk, prompts.token_ids(talk)) for talk in talks]
    assert counts == [counts[0] + n for n in range(100)]


def test_a_system_prompt_that_the_template_moves_behind_users_words_is_not_shared() -> None:
    """As Mistral's templates do: it stands before the last message of the user."""
    last = (
        "{% for m in messages if m.role != 'system' %}<s>"
        "{% if loop.last and messages[0].role == 'system' %}{{ messages[0].content }} {% endif %}"
        "{{ m.role }}: {{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}<s>assistant:{% endif %}"
    )
    prompts = PromptBuilder(tokenizer_with(last))
    first, later = [SYSTEM, HI], [SYSTEM, Message("user", "A secret."), REPLY, HI]
    assert prompts.system_tokens(first, prompts.token_ids(first)) > 0
    assert prompts.system_tokens(later, prompts.token_ids(later)) == 0


FEATURES = {
    "qwen": ("tools", "reasoning", "template", "continue"),
    "llama": ("tools", "template", "continue"),
    "mistral": ("tools", "template", "continue"),
    "r1": ("template", "continue"),
    "plain": ("template", "continue"),
}


@pytest.mark.parametrize("name", sorted(FEATURES))
def test_the_features_of_a_model_are_what_its_template_can_do(name: str) -> None:
    assert builder(name).features == FEATURES[name]


@pytest.mark.parametrize(
    ("left_out", "has_tools"),
    [
        (("{{ tool | tojson }}", ""), False),
        (("<tool_response>\n{{ m.content }}", "<tool_response>"), False),
        (("{{ call.function.arguments | tojson }}", ""), False),
        (("tool_call>", "invoke>"), False),
        (("{{ tool | tojson }}", "{{ tool.function.name }}"), True),
    ],
    ids=["tools", "results", "arguments", "calls that can be read", "all but names"],
)
def test_a_template_that_leaves_something_out_has_no_tools(
    left_out: tuple[str, str], *, has_tools: bool
) -> None:
    tokenizer = family(QWEN.replace(*left_out), ("<|im_start|>", "<|im_end|>"))
    assert ("tools" in PromptBuilder(tokenizer, detect_format(tokenizer)).features) == has_tools


def test_tools_calls_and_results_stand_where_the_template_puts_them() -> None:
    shown = text("qwen", HELLO, called(content="Let me see."), result(), spec=TOOLS)
    assert (
        json.dumps({"name": "add", "description": "Adds numbers.", "parameters": json.loads(ADD.parameters)})
        in shown
    )
    assert shown.endswith(
        "<|im_start|>assistant\nLet me see.\n"
        '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n42\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_ids_of_calls_are_as_short_as_the_template_wants_them() -> None:
    shown = text(
        "mistral", HELLO, called("call_from_far_away"), result(call_id="call_from_far_away"), spec=TOOLS
    )
    (calls,) = (json.loads(part.split("</s>")[0]) for part in shown.split("[TOOL_CALLS]")[1:])
    assert f'"call_id": "{calls[0]["id"]}"' in shown
    assert len(calls[0]["id"]) == 9


def test_where_a_message_has_one_call_several_are_told_one_by_one() -> None:
    both = Message(
        "assistant", "", calls=(ToolCall("a", "add", '{"a": 1}'), ToolCall("b", "add", '{"a": 2}'))
    )
    shown = text("llama", HELLO, both, result("two", "b"), result("one", "a"), spec=TOOLS)
    places = [shown.index(part) for part in ('{"a": 1}', "one<|eot_id|>", '{"a": 2}', "two<|eot_id|>")]
    assert places == sorted(places)


def test_reasoning_is_told_where_the_template_takes_it() -> None:
    thinks = called(reasoning="Sums are easy.")
    assert "<think>\nSums are easy.\n</think>" in text("qwen", HELLO, thinks, result(), spec=TOOLS)
    assert "easy" not in text("qwen", HELLO, thinks, result(), Message("assistant", "43."), MORE, spec=TOOLS)
    assert "easy" not in text("llama", HELLO, thinks, result(), spec=TOOLS)


@pytest.mark.parametrize("name", ["plain", "r1"])
def test_a_model_without_tools_is_told_of_calls_as_words(name: str) -> None:
    """Another model may have written them."""
    shown = text(name, HELLO, called(), result("43"), result("44", "call_2"), MORE)
    assert 'add({"a": 1})' in shown
    assert shown.index("43") < shown.index("44") < shown.index("and more?")


NO_VARIABLES = (
    *("tokenize", "chat_template", "tools", "documents", "messages", "conversation", "conversations"),
    *("add_generation_prompt", "continue_final_message", "sanitize_control_tokens", "return_tensors"),
    *("eos_token", "bos_token", "tokenizer_kwargs", "kwargs"),
)


@pytest.mark.parametrize(
    ("name", "spec", "field", "why"),
    [
        ("plain", TOOLS, "tools", "can't be shown tools"),
        *(
            ("qwen", ReplySpec(tools=(Tool("add", parameters=bad),)), "tools", r"not a (valid )?JSON Schema")
            for bad in ("{", "[]", "1", '{"a": ' * 5000)
        ),
        *((name, ReplySpec(reasoning="off"), "reasoning", "") for name in ("r1", "plain")),
        *(("qwen", ReplySpec(template={bad: "x"}), "template", bad) for bad in NO_VARIABLES),
    ],
)
def test_what_a_template_can_not_do_is_refused_by_its_field(
    name: str, spec: ReplySpec, field: str, why: str
) -> None:
    with pytest.raises(PromptRejected, match=why or None) as refused:
        prompt(name, HELLO, spec=spec)
    if spec.tools:  # unless they may not be called
        unseen = ReplySpec(tools=spec.tools, tool_choice="none")
        assert prompt(name, HELLO, spec=unseen) == prompt(name, HELLO)
    assert refused.value.field == field


@pytest.mark.parametrize("arguments", ["", "[1]", "no json", "{"])
def test_arguments_that_are_no_object_refuse_no_prompt(arguments: str) -> None:
    shown = text("qwen", HELLO, called(arguments=arguments), result(), spec=TOOLS)
    assert f'"arguments": {json.dumps(arguments)}' in shown


def test_reasoning_is_switched_by_the_variables_that_the_template_has() -> None:
    assert text("qwen", HELLO, spec=ReplySpec(reasoning="off")).endswith("<think>\n\n</think>\n\n")
    assert text("qwen", HELLO).endswith("<|im_start|>assistant\n")
    variables = {"enable_thinking": False, "unknown": "x"}
    assert text("qwen", HELLO, spec=ReplySpec(template=variables)).endswith("<think>\n\n</think>\n\n")
    effort = family("{{ messages[0].content }}: {{ reasoning_effort }} {{ thinking }}", ())
    reported = PromptBuilder(effort).token_ids([HELLO], ReplySpec(reasoning="low"))
    assert effort.decode(reported) == "hello there: low True"


def test_who_wants_the_least_reasoning_gets_what_the_template_can() -> None:
    least = ReplySpec(reasoning="least")
    assert text("qwen", HELLO, spec=least) == text("qwen", HELLO, spec=ReplySpec(reasoning="off"))
    assert text("plain", HELLO, spec=least) == text("plain", HELLO)
    for name in ("qwen", "plain"):
        assert text(name, HELLO, spec=ReplySpec(reasoning="high")) == text(name, HELLO), "only a hint"
    effort = family("{{ messages[0].content }}: {{ reasoning_effort }}", ())
    assert effort.decode(PromptBuilder(effort).token_ids([HELLO], least)) == "hello there: low"


def control_tokens(name: str, token_ids: list[int]) -> list[int]:
    added = tokenizer(name).added_tokens_decoder
    return [token_id for token_id in token_ids if token_id in added]


def test_escapes_in_a_schema_forge_nothing() -> None:
    schema = '{"type":"object","properties":{"\\u003c|im_end|\\u003e":{"const":"\\u003c|im_end|\\u003e"}}}'
    plain = ReplySpec(tools=(Tool("add", parameters=schema.replace("im_end", "word")),))
    forged = ReplySpec(tools=(Tool("add", parameters=schema),))
    assert control_tokens("qwen", prompt("qwen", HELLO, spec=forged)) == control_tokens(
        "qwen", prompt("qwen", HELLO, spec=plain)
    )


def test_the_operators_words_are_shared_up_to_a_users_tools() -> None:
    system = Message("system", "Be brief, and kind.")
    whole = prompt("qwen", system, HELLO, spec=TOOLS)
    shared = builder("qwen").system_tokens([system, HELLO], whole, TOOLS)
    assert tokenizer("qwen").decode(whole[:shared]) == "<|im_start|>system\nBe brief, and kind."
    plain = prompt("qwen", system, HELLO)
    assert shared < builder("qwen").system_tokens([system, HELLO], plain)


GOES_ON = ReplySpec(continues=True)
NAMES = ("qwen", "llama", "mistral", "plain")


def continued(name: str, *messages: Message, spec: ReplySpec = GOES_ON) -> Prompt:
    return builder(name).prompt(messages, spec)


@pytest.mark.parametrize("name", NAMES)
@given(written=st.text(st.sampled_from("helo thr\n<é👍")))
def test_a_reply_goes_on_where_it_ended(name: str, written: str) -> None:
    made = continued(name, HELLO, Message("assistant", written))
    assert tokenizer(name).decode(made.token_ids) == text(name, HELLO) + written
    started = made.token_ids[len(made.token_ids) - made.continued :]
    assert tokenizer(name).decode(started) == written
    assert made.token_ids[: len(made.token_ids) - made.continued] == prompt(name, HELLO)


@pytest.mark.parametrize(
    ("name", "content", "reasoning", "written", "opened"),
    [
        ("qwen", "Well.", "Sums  are easy.", "<think>\nSums  are easy.\n</think>\n\nWell.", ""),
        ("qwen", "", "Sums are", "<think>\nSums are", ""),
        ("qwen", "So", "an end is <|im_end|>", "<think>\nan end is <|im_end|>\n</think>\n\nSo", ""),
        ("qwen", "an end is <|im_end|> so", "", "an end is <|im_end|> so", ""),
        ("r1", "", "Why", "Why", "<think>\n"),
    ],
    ids=[
        "reasoning and text",
        "reasoning that was cut",
        "an end in it",
        "an end in text",
        "the prompt opened it",
    ],
)
def test_a_reply_with_reasoning_goes_on_as_the_template_writes_it(
    name: str, content: str, reasoning: str, written: str, opened: str
) -> None:
    """Control tokens that are spelled out stay text."""
    talk = (HELLO, Message("assistant", content, reasoning=reasoning))
    made = continued(name, *talk)
    assert tokenizer(name).decode(made.token_ids) == text(name, HELLO) + written
    assert (made.opened, made.continued) == (opened, len(made.token_ids) - len(prompt(name, HELLO)))
    if name == "qwen":
        assert made.token_ids.count(tokenizer("qwen").convert_tokens_to_ids("<|im_end|>")) == 1
    assert builder(name).token_ids(talk, GOES_ON) == made.token_ids, "so it is counted"


def test_words_without_the_reasoning_that_the_prompt_opened_go_on_without_it() -> None:
    """They are put into the mouth of a model that would have thought first."""
    made = continued("r1", HELLO, Message("assistant", "So, "))
    assert tokenizer("r1").decode(made.token_ids).endswith("hello there<|bot|>So, ")
    assert (made.opened, made.continued) == ("So, ", 0)
    assert continued("qwen", HELLO, Message("assistant", "")) == Prompt(prompt("qwen", HELLO))


def test_reasoning_alone_that_the_template_has_no_place_for_is_refused() -> None:
    with pytest.raises(PromptRejected, match="no place") as refused:
        continued("plain", HELLO, Message("assistant", "", reasoning="Why"))
    assert refused.value.field == "continues"


@pytest.mark.parametrize("talk", [(), (HELLO,), (HELLO, called(), result())])
def test_where_no_reply_is_last_none_can_go_on(talk: tuple[Message, ...]) -> None:
    with pytest.raises(PromptRejected, match="no reply") as refused:
        continued("qwen", *talk)
    assert refused.value.field == "continues"
