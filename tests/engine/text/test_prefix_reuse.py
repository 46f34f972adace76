"""What was computed for a turn is reused by the next one, as far as the tokenizer spells the history alike."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.loading.loader import load
from engine.messages import Chunk, Finished, FinishReason, Message, Output, Params, Request
from engine.process.dispatcher import RequestBuilder
from engine.prompts.prompt import JobHandler, PromptBuilder
from engine.scheduling.core import EngineCore
from engine.text.parser import ReplyFactory
from engine.text.reply_text import PreparedRequest
from tests.engine.conftest import small_tokenizer
from tests.engine.tiny_models import end_of, run_out

TEMPLATE = (
    "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)

HELLO, MORE = Message("user", "hello there, " * 12), Message("user", "and more?")
PAGE = 16
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


def test_a_turn_reuses_all_that_was_computed_as_a_prompt_before(engine: Engine) -> None:
    """Random weights choose tokens that the tokenizer would not: only the reply is computed again."""
    messages: tuple[Message, ...] = (HELLO,)
    reply, end = engine.turn(*messages)
    for _ in range(3):
        messages = (*messages, reply, MORE)
        before = end.prompt_tokens
        reply, end = engine.turn(*messages)
        assert end.cached_tokens >= before - PAGE


def test_a_cancelled_reply_leaves_its_prompt_to_the_next_turn(engine: Engine) -> None:
    engine.submit(HELLO)
    outputs = [output for _ in range(12) for output in engine.core.step()]
    engine.core.cancel("r")
    outputs += engine.core.step()
    end = end_of(outputs, "r")
    assert end.reason is FinishReason.CANCELLED
    _, second = engine.turn(HELLO, reply_of(outputs), MORE)
    assert second.cached_tokens >= end.prompt_tokens - PAGE
