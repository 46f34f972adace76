"""The process that makes prompts, a real one: it dies, hangs, forgets nothing that was asked."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

import engine
from engine.messages import JsonSchema, Message, ReplySpec
from engine.prompts.jobs import (
    LOST,
    BuildPrompt,
    BuiltPrompt,
    DecodeImage,
    Postponed,
    PromptProcess,
    PromptsUnavailable,
    Rejected,
)
from engine.prompts.prompt import PromptBuilder
from tests.coverage_tracing import coverage_enabled
from tests.engine.conftest import small_tokenizer
from tests.sample_images import PNG

HELLO = (Message("user", "hello there"),)
JOB = BuildPrompt(HELLO, 4096)
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(engine.__file__).parents[1])}
Make = Callable[..., PromptProcess]


@pytest.fixture
def process(tiny_llama: Path) -> Iterator[Make]:
    made: list[PromptProcess] = []

    def make(model: Path = tiny_llama, **how: float) -> PromptProcess:
        with coverage_enabled():
            made.append(PromptProcess(str(model), environment=ENVIRONMENT, **how))
        return made[-1]

    yield make
    for one in made:
        one.end()


def pid_of(process: PromptProcess) -> int:
    assert process.pid is not None
    return process.pid


def test_prompts_are_what_the_template_makes_of_them(process: Make) -> None:
    prompts = process()
    made = prompts.run_job(JOB)
    assert isinstance(made, BuiltPrompt)
    assert made.prompt == PromptBuilder(small_tokenizer()).prompt(HELLO)
    assert prompts.run_job(BuildPrompt(HELLO, 4096, counts=True)) == BuiltPrompt(made.tokens)
    too_long = prompts.run_job(BuildPrompt((Message("user", "word " * 100_000),), 4096))
    assert isinstance(too_long, BuiltPrompt)
    assert too_long.prompt is None
    assert isinstance(prompts.run_job(BuildPrompt((Message("user", "unspeakable"),), 4096)), Rejected)


def test_it_has_no_torch_and_little_memory(process: Make) -> None:
    prompts = process()
    prompts.run_job(JOB)
    mapped = Path(f"/proc/{pid_of(prompts)}/maps")
    if not mapped.exists():
        pytest.skip("no /proc here")
    assert "libtorch" not in mapped.read_text()


@pytest.mark.parametrize(
    ("trouble", "reported"), [(signal.SIGKILL, "restarted"), (signal.SIGSTOP, "no answer within 5 s")]
)
def test_one_that_died_or_hangs_is_started_again_and_what_was_asked_is_answered(
    trouble: signal.Signals, reported: str, process: Make, caplog: pytest.LogCaptureFixture
) -> None:
    prompts = process(job_timeout_s=5.0)
    first, before = prompts.run_job(JOB), pid_of(prompts)
    os.kill(before, trouble)
    assert prompts.run_job(JOB) == first
    assert pid_of(prompts) != before
    assert reported in caplog.text


def test_an_image_with_which_it_hangs_is_asked_once(process: Make) -> None:
    """The next one would hang with it, too, and all prompts wait meanwhile."""
    prompts = process(job_timeout_s=3.0)
    prompts.run_job(JOB)
    os.kill(pid_of(prompts), signal.SIGSTOP)
    assert prompts.run_job(DecodeImage("r", 0, PNG.image)) == Rejected(LOST)
    assert isinstance(prompts.run_job(JOB), BuiltPrompt)


def test_a_prompt_with_which_it_dies_twice_is_refused_and_the_next_one_is_made(process: Make) -> None:
    """A job that takes no time at all to be given up on stands for one that kills."""
    prompts = process(job_timeout_s=0.0)
    huge = BuildPrompt((Message("user", "\u00e9" * 3_000_000),), 10_000_000)
    assert prompts.run_job(huge) == Rejected("The prompt could not be prepared.")


def test_a_tokenizer_that_cannot_be_read_ends_it(process: Make, tmp_path: Path) -> None:
    with pytest.raises(PromptsUnavailable):
        process(tmp_path / "nowhere").run_job(JOB)


def test_others_are_served_while_a_grammar_is_tried(process: Make) -> None:
    """What was tried meanwhile is known when it is asked for again."""
    prompts = process()
    plain = prompts.run_job(JOB)
    costly = [
        msgspec.structs.replace(JOB, spec=ReplySpec(format=JsonSchema(f'{{"multipleOf": {n}}}')))
        for n in (99_991, 99_989)
    ]
    for job in costly:
        assert prompts.run_job(job) == Postponed()
        assert prompts.run_job(JOB) == plain
    reported = []
    for job in costly:
        while isinstance(answer := prompts.run_job(job), Postponed):
            pass
        reported.append(answer)
    assert [one.field for one in reported if isinstance(one, Rejected)] == ["format", "format"]
