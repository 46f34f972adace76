"""What is told of a reply while it is computed: reasoning, text and calls, each with its tokens, and how all of it was written."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from engine.messages import Chunk, Finished, FinishReason, Output, Reasoning, Started, ToolCallOutput
from engine.scheduling.core import EngineCore
from engine.text.parser import ParsedReply
from engine.text.reply_text import PreparedRequest
from tests.engine.text.letters import Letters
from tests.engine.text.parse import HERMES_THINKS, parser_of
from tests.engine.tiny_models import GREEDY, WINDOW, end_of, prepared_request, prompt, run_out, served

CALL = '<tool_call>{"name":"add","arguments":{}}</tool_call>'
SCRIPT = f"<think>Hm</think>ab{CALL}c"


class Script(Letters):
    """A detokenizer of a script: whatever the tokens are, they are its letters."""

    def __init__(self) -> None:
        self._letters = iter(SCRIPT)

    def push(self, token_id: int) -> str:
        return next(self._letters, "")


def scripted(request_id: str, tokens: int, length: int = 5) -> PreparedRequest:
    limits = msgspec.structs.replace(GREEDY, max_new_tokens=tokens)
    reply = ParsedReply(Script(), parser_of(HERMES_THINKS))
    return dataclasses.replace(prepared_request(request_id, prompt(length), limits), reply=reply)


@pytest.fixture(params=[False, True], ids=["at once", "behind the device"])
def core(request: pytest.FixtureRequest) -> EngineCore:
    made = EngineCore(served("llama", max_batch=2))
    if request.param:
        made._executor.feed()
    return made


def parts_of(outputs: list[Output]) -> list[tuple[str, str, int]]:
    kinds = {Reasoning: "thought", Chunk: "text"}
    return [
        ("call", one.arguments, one.tokens)
        if isinstance(one, ToolCallOutput)
        else (kinds[type(one)], one.text, one.tokens)
        for one in outputs
        if isinstance(one, ToolCallOutput | Chunk | Reasoning)
    ]


def test_pieces_come_in_order_each_with_the_tokens_behind_it(core: EngineCore) -> None:
    core.submit(scripted("a", len(SCRIPT)))
    outputs = run_out(core)
    assert parts_of(outputs) == [
        ("thought", "H", len("<think>H")),
        ("thought", "m", 1),
        ("text", "a", len("</think>a")),
        ("text", "b", 1),
        ("call", "{}", len(CALL)),
        ("text", "c", 1),
    ]


def test_a_cancel_leaves_out_what_is_held_back(core: EngineCore) -> None:
    core.submit(scripted("a", WINDOW - 10))
    outputs: list[Output] = []
    while not any(isinstance(one, Chunk) and one.text == "b" for one in outputs):
        outputs += core.step()
    outputs += core.step() + core.step() + core.step()
    core.cancel("a")
    outputs += core.step()
    assert end_of(outputs, "a").reason is FinishReason.CANCELLED
    assert parts_of(outputs)[-1] == ("text", "b", 1)


def test_a_reply_that_is_preempted_within_its_call_goes_on_in_it() -> None:
    core = EngineCore(served("llama", max_batch=2, kv_tokens=112))
    core.submit(scripted("a", len(SCRIPT)))
    core.submit(scripted("b", len(SCRIPT), 6))
    outputs = run_out(core)
    assert core.statistics().preemptions > 0
    for name in ("a", "b"):
        own = [one for one in outputs if one.request_id == name and not isinstance(one, Started | Finished)]
        assert ("call", "{}", len(CALL)) in parts_of(own)
