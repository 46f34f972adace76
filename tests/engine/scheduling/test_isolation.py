"""What is wrong with one request ends that request alone: eight bystanders write on, token for token."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import torch

from engine.api import Streamer
from engine.machine import EngineOptions
from engine.messages import Chunk, Finished, FinishReason, Message, Output, Params, Request
from engine.process.client import EngineClient
from engine.scheduling.core import EngineCore
from engine.text.reply_text import (
    DuplicateRequest,
    PreparedRequest,
    ReplyStep,
    SamplingParams,
    resolve_sampling,
)
from tests.engine.families import VOCABULARY, WINDOW
from tests.engine.faulty_requests import POISON, Unended, poisoned
from tests.engine.tiny_models import (
    GREEDY,
    Numbers,
    end_of,
    prepared_request,
    prompt,
    run_out,
    text_step,
    tokens_of,
)

ROOM = 16 * WINDOW
"""Tokens of KV memory: enough for all, so that nobody has to wait."""

NAMES = [f"bystander {n}" for n in range(8)]


def bystander(n: int) -> PreparedRequest:
    sampled = n % 2 == 1
    how = msgspec.structs.replace(
        GREEDY, max_new_tokens=24 + n, do_sample=sampled, temperature=0.8, top_p=0.95, seed=n
    )
    tokens = [token for token in prompt(5 + 17 * n % 60, salt=n) if token != POISON]
    return prepared_request(NAMES[n], tokens, how, client=str(n))


def start(core: EngineCore) -> list[Output]:
    """All bystanders have begun to write."""
    for n in range(len(NAMES)):
        core.submit(bystander(n))
    outputs: list[Output] = []
    while len({output.request_id for output in outputs if isinstance(output, Chunk)}) < len(NAMES):
        outputs += core.step()
    return outputs


def written(outputs: Sequence[Output]) -> dict[str, list[int]]:
    return {name: tokens_of(outputs, name) for name in NAMES}


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, list[int]]:
    """What the bystanders write where nothing is wrong."""
    core = EngineCore(poisoned(max_batch=9, kv_tokens=ROOM))
    return written(start(core) + run_out(core))


class BrokenDetokenizer(Numbers):
    """A detokenizer that fails at the second token."""

    def push(self, token_id: int) -> ReplyStep:
        if self._held:
            raise UnicodeError(f"no text for {token_id}")
        self._held = str(token_id)
        return text_step("")


def how(**values: object) -> SamplingParams:
    return msgspec.structs.replace(GREEDY, **values)


REFUSED = {
    "an empty prompt": (prepared_request("bad", []), "no tokens"),
    "a prompt larger than the window": (prepared_request("bad", prompt(WINDOW)), "must fit"),
    "a prompt far larger": (prepared_request("bad", prompt(50 * WINDOW)), "must fit"),
    "a token outside the vocabulary": (prepared_request("bad", [1, VOCABULARY, 2]), "outside of the vocabulary"),
    "a token below it": (prepared_request("bad", [-1]), "outside of the vocabulary"),
    "no new tokens": (prepared_request("bad", [1], how(max_new_tokens=0)), "at least 1"),
    "no numbers": (prepared_request("bad", [1, POISON, 2]), "not numbers"),
    "no numbers, sampled": (
        prepared_request("bad", [1, POISON, 2], how(do_sample=True, top_p=0.5, repetition_penalty=1.2)), "not numbers"
    ),
    "a temperature that is no number": (
        prepared_request("bad", [1, 2], how(do_sample=True, temperature=float("nan"))), "not numbers"
    ),
    "a token that has no text": (prepared_request("bad", [1, 2], reply=BrokenDetokenizer()), "text could not be made"),
    "an end that has no text": (prepared_request("bad", [1, 2], reply=Unended()), "text could not be made"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_request_ends_with_its_own_error_and_nobody_else_notices(
    case: str, undisturbed: dict[str, list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    bad, word = REFUSED[case]
    core = EngineCore(poisoned(max_batch=9, kv_tokens=ROOM))
    with caplog.at_level(logging.CRITICAL):
        outputs = start(core)
        core.submit(bad)
        outputs += run_out(core)
    end = end_of(outputs, "bad")
    assert end.reason is FinishReason.ERROR
    assert word in (end.error or "")
    assert written(outputs) == undisturbed


NONSENSE = {
    "temperature 0": resolve_sampling(Params(temperature=0.0, max_new_tokens=8), Params()),
    "temperature 0, sampled": how(do_sample=True, temperature=0.0),
    "a tiny temperature": how(do_sample=True, temperature=1e-30),
    "a negative top_k": how(do_sample=True, top_k=-3),
    "a top_p of 0": how(do_sample=True, top_p=0.0),
    "a penalty of 0": how(repetition_penalty=0.0),
}


@pytest.mark.parametrize("case", NONSENSE)
def test_odd_wishes_for_sampling_end_as_any_other_and_nobody_else_notices(
    case: str, undisturbed: dict[str, list[int]]
) -> None:
    core = EngineCore(poisoned(max_batch=9, kv_tokens=ROOM))
    outputs = start(core)
    core.submit(prepared_request("odd", prompt(5), NONSENSE[case]))
    outputs += run_out(core)
    assert end_of(outputs, "odd").reason in {FinishReason.LENGTH, FinishReason.ERROR}
    assert written(outputs) == undisturbed


def test_temperature_0_is_the_likeliest_token_each_time(undisturbed: dict[str, list[int]]) -> None:
    core = EngineCore(poisoned(max_batch=9, kv_tokens=ROOM))
    outputs = start(core)
    core.submit(prepared_request("cold", prompt(5), NONSENSE["temperature 0"]))
    core.submit(prepared_request("greedy", prompt(5)))
    outputs += run_out(core)
    assert tokens_of(outputs, "cold") == tokens_of(outputs, "greedy")
    assert written(outputs) == undisturbed


def test_a_reply_that_outgrows_the_window_ends_where_it_does(undisturbed: dict[str, list[int]]) -> None:
    core = EngineCore(poisoned(max_batch=9, kv_tokens=ROOM))
    outputs = start(core)
    core.submit(prepared_request("endless", prompt(WINDOW - 20), how(max_new_tokens=10 * WINDOW)))
    outputs += run_out(core)
    end = end_of(outputs, "endless")
    assert (end.reason, end.error, end.generated_tokens) == (FinishReason.LENGTH, None, 20)
    assert written(outputs) == undisturbed


def test_a_second_request_of_the_same_id_is_refused_and_the_first_writes_on(
    undisturbed: dict[str, list[int]],
) -> None:
    core = EngineCore(poisoned(max_batch=9, kv_tokens=ROOM))
    outputs = start(core)
    for name in NAMES:
        with pytest.raises(DuplicateRequest, match=name):
            core.submit(prepared_request(name, prompt(30)))
    outputs += run_out(core)
    assert written(outputs) == undisturbed


def test_a_cancel_of_a_reply_whose_rest_cannot_be_told_ends_it_and_nobody_else_notices(
    undisturbed: dict[str, list[int]],
) -> None:
    core = EngineCore(poisoned(max_batch=9, kv_tokens=ROOM))
    core.submit(prepared_request("bad", prompt(10), reply=Unended()))
    outputs = start(core)
    core.cancel("bad")
    outputs += run_out(core)
    assert end_of(outputs, "bad").reason is FinishReason.CANCELLED
    assert written(outputs) == undisturbed


def test_values_that_are_no_numbers_stay_behind_in_no_slot(undisturbed: dict[str, list[int]]) -> None:
    """A request that is cancelled before its first token has left them where nothing has looked yet."""
    core = EngineCore(poisoned(max_batch=9, kv_tokens=ROOM), step_target_s=1e-9)
    core.submit(prepared_request("warm", prompt(100)))  # the pace learns that it is slow
    run_out(core)
    core.submit(prepared_request("bad", [POISON] * 120))
    while core.statistics().prompt_tokens < 100 + 80:
        core.step()
    core.cancel("bad")
    assert end_of(core.step(), "bad").reason is FinishReason.CANCELLED
    assert written(start(core) + run_out(core)) == undisturbed


def hungry(_module: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
    """Ask the allocator for more than any machine has, wherever one token takes part."""
    if (arguments[0] == POISON).any():
        torch.empty(2**58)


@pytest.mark.parametrize("reply", [Numbers, Unended])
def test_a_step_without_enough_memory_ends_the_newest_alone_even_where_its_text_fails_as_well(
    reply: type[Numbers], undisturbed: dict[str, list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    model = poisoned(max_batch=9, kv_tokens=ROOM)
    model.module.get_input_embeddings().register_forward_pre_hook(hungry)
    core = EngineCore(model)
    with caplog.at_level(logging.CRITICAL):
        outputs = start(core)
        core.submit(prepared_request("bad", [POISON] * 5, reply=reply()))
        outputs += run_out(core)
    assert end_of(outputs, "bad").reason is FinishReason.ERROR
    assert written(outputs) == undisturbed


def make_request(request_id: str, content: str) -> Request:
    messages = (Message("user", content),)
    return Request(request_id, messages, Params(max_new_tokens=60, do_sample=False), client=request_id)


async def read(stream: Streamer) -> tuple[str, Finished]:
    outputs = [output async for output in stream]
    end = outputs[-1]
    assert isinstance(end, Finished)
    return "".join(output.text for output in outputs if isinstance(output, Chunk)), end


@pytest.fixture(scope="module")
def odd_template(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose template divides by zero at one word, and refuses another."""
    folder = Path(shutil.copytree(tiny_llama, tmp_path_factory.mktemp("odd") / "model"))
    template = folder / "chat_template.jinja"
    breaks = "{% for message in messages %}{% if 'undividable' in message.content %}{{ 1 / 0 }}{% endif %}{% endfor %}"
    template.write_text(breaks + template.read_text())
    return folder


async def test_prompts_that_cannot_be_prepared_end_alone_in_the_engines_process(odd_template: Path) -> None:
    options = EngineOptions(model=str(odd_template), device="cpu", dtype="float32", max_batch=9)

    async def bystanders(engine: EngineClient, *others: Request) -> list[tuple[str, Finished]]:
        streams = [engine.generate(make_request(name, f"hello {name}")) for name in NAMES]
        streams += [engine.generate(request) for request in others]
        return await asyncio.gather(*(read(stream) for stream in streams))

    async with EngineClient(options).running() as engine:
        await engine.ready(timeout_s=200)
        quiet = await bystanders(engine)
        *disturbed, broken, refused, large = await bystanders(
            engine,
            make_request("broken", "an undividable word"),
            make_request("refused", "an unspeakable word"),
            make_request("large", "word " * 5000),
        )
        assert engine.status.restarts == 0
    assert [text for text, _ in disturbed] == [text for text, _ in quiet]
    assert all(end.reason is FinishReason.LENGTH for _, end in disturbed)
    assert broken[1].error == "The prompt could not be prepared."
    assert "unspeakable" in (refused[1].error or "")
    assert "must fit" in (large[1].error or "")
