"""Asks a checkpoint held-out questions and prints how many replies are right: `python -m demo_model.evaluate`.

Replies are greedy, in the checkpoint's own precision and through its own chat template. The exit code is 1 when a skill
falls short of 95 %.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from demo_model import dialogues
from demo_model.refusals import REFUSALS
from demo_model.stories import is_story
from demo_model.turns import Probe, Skill

CHECKPOINT = Path(__file__).parent / "checkpoint"
ENOUGH = 0.95
LONG_COUNT = "counts far"
_BATCH = 64
_SLACK = 40


@dataclass(frozen=True, slots=True)
class Wrong:
    """A probe that was answered wrongly."""

    prompt: str
    expected: str
    got: str


@dataclass(frozen=True, slots=True)
class Score:
    """How a skill fared: `right` of `total` probes, and the wrong ones."""

    skill: str
    right: int
    total: int
    wrong: tuple[Wrong, ...]

    @property
    def rate(self) -> float:
        """The share of right replies."""
        return self.right / self.total


def main() -> int:
    """Read the command line, evaluate, print; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m demo_model.evaluate", description=__doc__.split("\n\n")[0] if __doc__ else ""
    )
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT)
    parser.add_argument("--each", type=int, default=120, help="probes of each skill (default: %(default)d)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--skill",
        action="append",
        choices=[*map(str, Skill), LONG_COUNT],
        help="only this skill; may be repeated",
    )
    parser.add_argument(
        "--sample",
        action="store_true",
        help="sample with the checkpoint's defaults instead of greedy replies",
    )
    parser.add_argument("--dtype", default="auto", help="auto (the checkpoint's own) or float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--show", type=int, default=0, metavar="N", help="print up to N wrong replies of each skill"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    tokenizer = AutoTokenizer.from_pretrained(options.checkpoint)
    model: Any = AutoModelForCausalLM.from_pretrained(options.checkpoint, dtype=options.dtype)
    began = time.monotonic()
    scores = []
    for skill in options.skill or [*map(str, Skill), LONG_COUNT]:
        scores.append(
            evaluate(
                model, tokenizer, probes(skill, options.each, options.seed), skill, sample=options.sample
            )
        )
        if not options.json:
            _print(scores[-1], options.show)
    if options.json:
        print(
            json.dumps(
                {
                    score.skill: {"right": score.right, "asked": score.total, "rate": score.rate}
                    for score in scores
                }
            )
        )
    else:
        print(f"{time.monotonic() - began:.0f} s")
    return 0 if all(score.rate >= ENOUGH for score in scores) else 1


def probes(skill: str, each: int, seed: int) -> list[Probe]:
    """Held-out probes of a skill; of far counts fewer, since each takes a thousand tokens."""
    rng = random.Random(f"evaluation {seed} {skill}")
    if skill == LONG_COUNT:
        return list(_far_counts(rng, max(2, each // 5)))
    return [dialogues.probe(rng, Skill(skill), longest_count=60) for _ in range(each)]


def _far_counts(rng: random.Random, each: int) -> Iterator[Probe]:
    for last in (300, 500):
        yield dialogues.plain_count(1, last)
    while each > 2:  # noqa: PLR2004
        far = dialogues.probe(rng, Skill.COUNT, longest_count=500)
        if far.replies[0].count(",") > 100:  # noqa: PLR2004
            each -= 1
            yield far


def evaluate(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    cases: Sequence[Probe],
    skill: str,
    *,
    sample: bool = False,
) -> Score:
    """Answer every probe, those of like length together, and compare; a turn with calls is right when all of it is."""
    wrong: dict[int, Wrong] = {}
    steps = list(enumerate(cases))
    steps += [(place, each.then) for place, each in steps if each.then is not None]
    steps.sort(
        key=lambda step: (
            len(step[1].replies[0]),
            sum(len(message.content) for message in step[1].messages),
        )
    )
    for start in range(0, len(steps), _BATCH):
        batch = [each for _, each in steps[start : start + _BATCH]]
        longest = max(len(tokenizer.encode(each.replies[0])) for each in batch) + _SLACK
        replies = answers(model, tokenizer, batch, most_tokens=longest, sample=sample)
        for (place, each), got in zip(steps[start : start + _BATCH], replies, strict=True):
            if not is_right(each, got):
                wrong[place] = Wrong(each.messages[-1].content, each.replies[0], got)
    return Score(skill, len(cases) - len(wrong), len(cases), tuple(wrong.values()))


def answers(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    cases: Sequence[Probe],
    *,
    most_tokens: int,
    sample: bool = False,
) -> list[str]:
    """The model's reply of at most `most_tokens` tokens to each probe, with what the prompt gives of it."""
    rendered = [
        str(
            tokenizer.apply_chat_template(
                [{"role": message.role, "content": message.content} for message in each.messages],
                add_generation_prompt=True,
                tokenize=False,
            )
        )
        + each.given
        for each in cases
    ]
    inputs = tokenizer(
        rendered, return_tensors="pt", padding=True, add_special_tokens=False, return_token_type_ids=False
    )
    how = {} if sample else {"do_sample": False, "temperature": None, "top_p": None}
    with torch.inference_mode():
        replies = model.generate(**inputs, max_new_tokens=most_tokens, **how)[
            :, inputs["input_ids"].shape[1] :
        ]
    texts = tokenizer.batch_decode(replies, skip_special_tokens=True)
    return [each.given + text for each, text in zip(cases, texts, strict=True)]


def is_right(probe: Probe, got: str) -> bool:
    """Whether a reply counts as right: exact, but any whole story, any honest refusal and either way to go on will do."""
    match probe.skill:
        case Skill.STORY:
            return is_story(got, probe.messages[-1].content)
        case Skill.REFUSAL:
            return got in REFUSALS
        case Skill.NO_CALL if probe.replies[0] in REFUSALS:
            return got in REFUSALS
        case Skill.GO_ON:
            return got in probe.replies or got == _behind_what_was_seen(probe)
        case _:
            return got in probe.replies


def _behind_what_was_seen(probe: Probe) -> str | None:
    """The rest of a count whose last number was seen whole, though not its comma: the number need not be said again."""
    seen, rest = probe.messages[-2].content.rpartition(", ")[2], probe.replies[0]
    return rest.removeprefix(f"{seen}, ") if rest.startswith(f"{seen}, ") else None


def _print(score: Score, show: int) -> None:
    print(f"{score.skill:20}  {score.right:4d} of {score.total:4d}  {100 * score.rate:5.1f} %", flush=True)
    for wrong in score.wrong[:show]:
        print(
            f"    {wrong.prompt!r}\n        expected {wrong.expected[-200:]!r}\n        got      {wrong.got[-200:]!r}"
        )


if __name__ == "__main__":
    sys.exit(main())
