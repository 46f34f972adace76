"""Translates held-out sentences and prints how many are right, letter for letter: `python -m demo_translator.evaluate`.

Greedy, in the checkpoint's own precision. Then sentences grow word by word, and what three hypotheses in a row agree on is told: it
says how many of these words contradict the translation of the whole, and how far they lag. The exit code is 1 where a skill, in a
direction, falls short of 90 %, or where more than 2 % of the words contradict.
"""

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedTokenizerBase

from demo_model.holdout import Split
from demo_translator.model import CHECKPOINT
from demo_translator.pairs import Pair, sentence, text
from demo_translator.sentences import SKILLS
from demo_translator.simultaneous import follow
from demo_translator.tokenizer import CHINESE, ENGLISH

ENOUGH = 0.9
MOST_PREMATURE = 0.02
SEVERAL = "several sentences"
_BATCH = 60


@dataclass(frozen=True, slots=True)
class Score:
    """How sentences of a skill fared in a direction; `wrong` has what was asked, expected and written."""

    skill: str
    target: str
    total: int
    wrong: tuple[tuple[str, str, str], ...]

    @property
    def rate(self) -> float:
        """The share that was right."""
        return 1 - len(self.wrong) / self.total


def main() -> int:
    """Read the command line, evaluate, print; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m demo_translator.evaluate", description="Evaluates the bundled translator."
    )
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT)
    parser.add_argument(
        "--each", type=int, default=120, help="sentences of each skill (default: %(default)d)"
    )
    parser.add_argument(
        "--growing", type=int, default=20, help="of each that grow word by word (default: %(default)d)"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--show", type=int, default=0, metavar="N", help="print up to N wrong ones of each")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tokenizer = AutoTokenizer.from_pretrained(options.checkpoint)
    model: Any = AutoModelForSeq2SeqLM.from_pretrained(options.checkpoint, dtype="auto")
    scores = []
    for skill in (*SKILLS, SEVERAL):
        pairs = probes(skill, options.each, options.seed)
        for target in (CHINESE, ENGLISH):
            scores.append(score := evaluate(model, tokenizer, pairs, skill, target))
            right = score.total - len(score.wrong)
            print(
                f"{skill:18} to {target}  {right:4d} of {score.total:4d}  {100 * score.rate:5.1f} %",
                flush=True,
            )
            for source, wanted, got in score.wrong[: options.show]:
                print(f"    {source!r}\n        expected {wanted!r}\n        got      {got!r}")
    growing = [pair for skill in SKILLS for pair in probes(skill, options.growing, options.seed)]
    followed = [follow(model, tokenizer, growing, target) for target in (CHINESE, ENGLISH)] if growing else []
    for one in followed:
        print(
            f"while it grows     to {one.target}  {one.right:4d} of {one.total:4d} right, {one.early} words told early, "
            f"{100 * one.rate:.1f} % of them premature, LAAL {one.lag:.2f} words",
            flush=True,
        )
        for source, whole, early in one.contradicted[: options.show]:
            print(f"    {source!r}\n        is       {whole!r}\n        told     {early!r}")
    enough = all(score.rate >= ENOUGH for score in scores)
    return 0 if enough and all(one.rate <= MOST_PREMATURE for one in followed) else 1


def probes(skill: str, each: int, seed: int) -> list[Pair]:
    """Return held-out sentences of a skill, or texts of several, each of which has a value that training never saw there."""
    rng = random.Random(f"translations {seed} {skill}")
    if skill == SEVERAL:
        return [text(rng, Split.HELD_OUT, least=2) for _ in range(each)]
    return [sentence(rng, Split.HELD_OUT, skill) for _ in range(each)]


def evaluate(
    model: Any, tokenizer: PreTrainedTokenizerBase, pairs: Sequence[Pair], skill: str, target: str
) -> Score:
    """Translate all into a language, and compare."""
    ordered = sorted(
        (pair if target == CHINESE else Pair(*pair[::-1]) for pair in pairs), key=lambda one: len(one[0])
    )
    got: list[str] = []
    for start in range(0, len(ordered), _BATCH):
        sources = [source for source, _ in ordered[start : start + _BATCH]]
        got += translations(model, tokenizer, sources, target)
    wrong = tuple(
        (source, wanted, output)
        for (source, wanted), output in zip(ordered, got, strict=True)
        if output != wanted
    )
    return Score(skill, target, len(pairs), wrong)


def translations(
    model: Any, tokenizer: PreTrainedTokenizerBase, sources: Sequence[str], target: str
) -> list[str]:
    """Return the translations of texts, made together, into the other one of both languages."""
    spoken: Any = tokenizer
    spoken.src_lang = ENGLISH if target == CHINESE else CHINESE
    inputs = tokenizer(list(sources), return_tensors="pt", padding=True)
    with torch.inference_mode():
        made = model.generate(**inputs, forced_bos_token_id=tokenizer.convert_tokens_to_ids(target))
    return list(tokenizer.batch_decode(made, skip_special_tokens=True))


if __name__ == "__main__":
    sys.exit(main())
