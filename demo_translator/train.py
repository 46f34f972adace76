"""Trains the translator and its tokenizer from nothing and writes the checkpoint: `python -m demo_translator.train`.

The run is measured in minutes of one process; with --state it can be stopped and taken up again.
"""

import argparse
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer, M2M100ForConditionalGeneration, PreTrainedTokenizerBase

from demo_model.holdout import Split, chance
from demo_model.trainer import Progress
from demo_translator.model import CHECKPOINT, languages, new_model, save
from demo_translator.pairs import as_typed, sentence, text
from demo_translator.prefixes import source_prefix
from demo_translator.tokenizer import CHINESE, ENGLISH, new_tokenizer

_MATRIX_RATE, _OTHER_RATE = 5e-3, 2e-3
_TOKENS = 1_000
"""Of the targets of a step, about."""
_POOL = 512
"""Pairs that are sorted by length before they become batches."""
_CUT = 0.3
"""The share of sources that are one sentence, cut off; the others are whole texts."""
_REPORT_EVERY = 50
_LONGEST_STEP_S = 30.0  # more, and the computer slept: that counts for nothing
_LEFT_OUT = -100


class Batch(NamedTuple):
    """Token ids, padded: sources with their mask, what the decoder reads, and what it is to write."""

    source: Tensor
    mask: Tensor
    read: Tensor
    written: Tensor


class Trainer:
    """The model's optimizers and steps. Muon for the matrices inside the layers, AdamW for all else."""

    def __init__(self, model: M2M100ForConditionalGeneration, progress: Progress) -> None:
        """Take a model; `progress` says how far it is."""
        self.model = model
        self.progress = progress
        named = list(model.named_parameters())
        matrices = [weight for name, weight in named if weight.ndim == 2 and "layers." in name]  # noqa: PLR2004 - a matrix
        others = [weight for name, weight in named if weight.ndim != 2 or "layers." not in name]  # noqa: PLR2004 - as above
        self._optimizers: tuple[torch.optim.Optimizer, ...] = (
            torch.optim.Muon(matrices, weight_decay=0.02, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.0),
        )

    def step(self, batch: Batch) -> float:
        """Learn from a batch; gives its loss."""
        began = time.monotonic()
        for optimizer, highest in zip(self._optimizers, (_MATRIX_RATE, _OTHER_RATE), strict=True):
            optimizer.param_groups[0]["lr"] = highest * self.progress.rate
        states = self.model.model(
            input_ids=batch.source,
            attention_mask=batch.mask,
            decoder_input_ids=batch.read,
            use_cache=False,
        ).last_hidden_state
        learned = batch.written != _LEFT_OUT
        loss = cross_entropy(self.model.lm_head(states[learned]), batch.written[learned])
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self._optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.progress.steps += 1
        self.progress.tokens += int(learned.sum())
        self.progress.seconds += min(time.monotonic() - began, _LONGEST_STEP_S)
        return loss.item()

    def keep(self, file: Path) -> None:
        """Write all that `take_up` needs."""
        kept = [optimizer.state_dict() for optimizer in self._optimizers]
        progress = (self.progress.seconds, self.progress.steps, self.progress.tokens)
        torch.save({"model": self.model.state_dict(), "optimizers": kept, "progress": progress}, file)

    def take_up(self, file: Path) -> None:
        """Go on where `keep` left off; the time limit stays this trainer's own."""
        kept = torch.load(file)
        self.model.load_state_dict(kept["model"])
        for optimizer, state in zip(self._optimizers, kept["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self.progress.seconds, self.progress.steps, self.progress.tokens = kept["progress"]


def batches(tokenizer: PreTrainedTokenizerBase, rng: random.Random) -> Iterator[Batch]:
    """Yield batches of texts that training may see, each in either direction, without end."""
    ends = (tokenizer.eos_token_id, tokenizer.pad_token_id)
    named = dict(zip((ENGLISH, CHINESE), languages(tokenizer), strict=True))
    while True:
        pool = sorted((_example(tokenizer, rng, named) for _ in range(_POOL)), key=lambda one: len(one[1]))
        cut: list[list[tuple[list[int], list[int]]]] = [[]]
        for one in pool:
            if cut[-1] and (len(cut[-1]) + 1) * len(one[1]) > _TOKENS:
                cut.append([])
            cut[-1].append(one)
        rng.shuffle(cut)
        yield from (_padded(examples, *ends) for examples in cut)


def _example(
    tokenizer: PreTrainedTokenizerBase, rng: random.Random, named: dict[str, int]
) -> tuple[list[int], list[int]]:
    """Return a source's ids with its language before it, and a target's likewise; both have their end, but for a source that is cut off."""
    source, target = (ENGLISH, CHINESE) if chance(rng, 0.5) else (CHINESE, ENGLISH)
    is_cut, order = chance(rng, _CUT), (ENGLISH, CHINESE)
    pair = (
        source_prefix(rng, sentence(rng, Split.TRAIN), order.index(source))
        if is_cut
        else text(rng, Split.TRAIN)
    )
    sides = dict(zip(order, pair, strict=True))
    spelled = [
        tokenizer(side, add_special_tokens=False)["input_ids"]
        for side in (as_typed(rng, sides[source]), sides[target])
    ]
    end = [tokenizer.eos_token_id]
    return [named[source], *spelled[0], *([] if is_cut else end)], [named[target], *spelled[1], *end]


def _padded(examples: list[tuple[list[int], list[int]]], end: int, pad: int) -> Batch:
    longest, widest = (max(len(one[side]) for one in examples) for side in (0, 1))
    source = torch.tensor([one + [pad] * (longest - len(one)) for one, _ in examples])
    read = torch.tensor([([end, *one[:-1]]) + [pad] * (widest - len(one)) for _, one in examples])
    written = torch.tensor([one + [_LEFT_OUT] * (widest - len(one)) for _, one in examples])
    written[:, 0] = _LEFT_OUT  # the language is given
    return Batch(source, (source != pad).long(), read, written)


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(
        prog="python -m demo_translator.train", description="Trains the bundled translator."
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="how long (default: %(default)g)")
    parser.add_argument(
        "--seed", type=int, default=0, help="of texts and first weights (default: %(default)d)"
    )
    parser.add_argument("--threads", type=int, default=2, help="default: %(default)d")
    parser.add_argument("--out", type=Path, default=CHECKPOINT, help="folder to write the checkpoint to")
    parser.add_argument(
        "--state", type=Path, help="file that keeps the whole state; taken up again if it exists"
    )
    parser.add_argument(
        "--save-every", type=float, default=4.0, metavar="MINUTES", help="default: %(default)g"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    resumed = options.state is not None and options.state.exists()
    tokenizer = AutoTokenizer.from_pretrained(options.out) if resumed else new_tokenizer(options.seed)
    trainer = Trainer(new_model(tokenizer), Progress(limit=options.minutes * 60))
    if resumed:
        trainer.take_up(options.state)
    train(trainer, tokenizer, options)


def train(trainer: Trainer, tokenizer: PreTrainedTokenizerBase, options: argparse.Namespace) -> None:
    """Step until the time is up; reports and writes as it goes."""
    progress, saved = trainer.progress, trainer.progress.seconds
    rng = random.Random(f"translating {options.seed} {progress.steps}")
    losses: list[float] = []
    for batch in batches(tokenizer, rng):
        losses.append(trainer.step(batch))
        if len(losses) == _REPORT_EVERY:
            speed = progress.tokens / progress.seconds
            print(
                f"{progress.seconds / 60:5.1f} min  step {progress.steps:5d}  "
                f"loss {sum(losses) / len(losses):.4f}  {speed:,.0f} tokens/s",
                flush=True,
            )
            losses.clear()
        if progress.done == 1 or progress.seconds - saved > options.save_every * 60:
            saved = progress.seconds
            save(trainer.model, tokenizer, options.out)
            if options.state is not None:
                trainer.keep(options.state)
        if progress.done == 1:
            print(f"{progress.tokens:,} tokens; written to {options.out}", flush=True)
            return


if __name__ == "__main__":
    main()
