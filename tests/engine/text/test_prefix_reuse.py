"""What was kept of a turn is taken up by the next one, however the model had spelled its reply."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.loading.loader import load
from engine.messages import Chunk, Finished, FinishReason, Message, Output, Params, Request
from engine.process.dispatcher import RequestBuilder
from engine.prompts.jobs import RememberReply
from engine.prompts.prompt import JobHandler, PromptBuilder
from engine.scheduling.core import EngineCore
from engine.text.parser import ReplyFactory
from engine.text.reply_text import PreparedRequest
from tests.engine.conftest import small_tokenizer
from tests.engine.text.test_spelling import TEMPLATE
from tests.engine.tiny_models import end_of, run_out

HELLO, MORE = Message("user", "hello there"), Message("user", "and more?")
WARM = Params(max_new_tokens=24, do_sample=True, temperature=1.0, top_k=0, seed=3)


class Engine:
    """A core and what prepares its requests, on one thread."""

    def __init__(self, folder: Path) -> None:
        model = load(str(folder), device="cpu", dtype="float32", max_batch=2)
        model.tokenizer.chat_template = TEMPLATE
        self.window = model.context_tokens
        self.core = EngineCore(model)
        self.prompts = PromptBuilder(model.tokenizer)
        self._builder = JobHandler(self.prompts)
        self._preparer = RequestBuilder(
            ReplyFactory(model.tokenizer, None),
            model.defaults,
            context_tokens=self.window,
            remember=lambda salt, reply: self._builder.remember(RememberReply.of(salt, reply)),
        )

    def submit(self, *messages: Message, name: str = "r", params: Params = WARM, salt: str = "") -> None:
        request = Request(name, messages, params, cache_salt=salt)
        made = self._builder.build(self._preparer.job(request), lambda: False)
        prepared = self._preparer.prepared(request, made)
        assert isinstance(prepared, PreparedRequest)
        self.core.submit(prepared)

    def turn(self, *messages: Message, params: Params = WARM, salt: str = "") -> tuple[Message, Finished]:
        """A whole turn: the reply, and its end."""
        self.submit(*messages, params=params, salt=salt)
        outputs = run_out(self.core)
        return reply_of(outputs), end_of(outputs, "r")

    def plain_tokens(self, text: str) -> int:
        """How many tokens the tokenizer makes of a reply."""
        filled, silent = (self.prompts.token_ids([HELLO, Message("assistant", each)]) for each in (text, ""))
        return len(filled) - len(silent)


def reply_of(outputs: list[Output]) -> Message:
    return Message("assistant", "".join(output.text for output in outputs if isinstance(output, Chunk)))


@pytest.fixture(scope="module")
def folder(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with sharper tastes: it has no liking for special tokens, which leave no text."""
    sharp = tmp_path_factory.mktemp("models") / "sharp-llama"
    shutil.copytree(tiny_llama, sharp)
    weights = load_file(sharp / "model.safetensors")
    torch.manual_seed(5)
    weights["lm_head.weight"] = 3 * torch.randn_like(weights["lm_head.weight"])
    weights["lm_head.weight"][small_tokenizer().all_special_ids] = 0
    save_file(weights, sharp / "model.safetensors", metadata={"format": "pt"})
    return sharp


@pytest.fixture
def engine(folder: Path) -> Engine:
    return Engine(folder)


def test_the_next_turn_takes_up_a_reply_in_an_odd_spelling(engine: Engine) -> None:
    reply, first = engine.turn(HELLO)
    assert engine.plain_tokens(reply.content) != first.generated_tokens == 24
    _, second = engine.turn(HELLO, reply, MORE)
    # The last token of a reply was drawn, and never computed.
    assert second.cached_tokens == first.prompt_tokens + first.generated_tokens - 1


def test_the_turns_after_it_take_up_all_replies(engine: Engine) -> None:
    messages: tuple[Message, ...] = (HELLO,)
    reply, end = engine.turn(*messages)
    for _ in range(3):
        known = end.prompt_tokens + end.generated_tokens - 1
        messages = (*messages, reply, MORE)
        reply, end = engine.turn(*messages)
        assert end.cached_tokens == known


def test_a_cancelled_reply_is_taken_up_as_far_as_it_was_seen(engine: Engine) -> None:
    engine.submit(HELLO)
    outputs = [output for _ in range(12) for output in engine.core.step()]
    engine.core.cancel("r")
    outputs += engine.core.step()
    end = end_of(outputs, "r")
    assert end.reason is FinishReason.CANCELLED
    _, second = engine.turn(HELLO, reply_of(outputs), MORE)
    # Up to three tokens at its end may have been half a character, which nobody saw.
    assert second.cached_tokens >= end.prompt_tokens + end.generated_tokens - 4


def test_nobody_elses_prompt_is_spelled_by_it(engine: Engine) -> None:
    reply, _ = engine.turn(HELLO, salt="mine")
    _, end = engine.turn(HELLO, reply, MORE, salt="yours")
    assert end.prompt_tokens == len(engine.prompts.token_ids([HELLO, reply, MORE]))
    assert end.cached_tokens == 0
