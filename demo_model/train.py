"""Trains the tokenizer and the demo model and writes the checkpoint: `python -m demo_model.train`.

The run is measured in minutes; with --state it can be stopped and taken up again.
"""

import argparse
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast

from demo_model import dialogues
from demo_model.batches import Batch, batches
from demo_model.model import new_model, save
from demo_model.tokenizer import train_tokenizer

CHECKPOINT = Path(__file__).parent / "checkpoint"
_WORDS = 1100
_MATRIX_RATE, _OTHER_RATE = 5e-3, 3e-3
_WARM_UP_STEPS = 60
_LONG_FROM, _LONG_SHARE = 0.12, 0.07


@dataclass
class Progress:
    """How far the run is: seconds trained, steps taken, tokens seen."""

    limit: float
    seconds: float = 0.0
    steps: int = 0
    tokens: int = 0
    _since: float = field(default_factory=time.monotonic)

    @property
    def done(self) -> float:
        """The share of the time limit that is used up, from 0 to 1."""
        return min(1.0, self.seconds / self.limit)

    @property
    def rate(self) -> float:
        """What the learning rate is multiplied with now: a short rise, then a straight fall to nothing."""
        return min(1.0, (self.steps + 1) / _WARM_UP_STEPS) * max(0.01, min(1.0, 1.15 * (1 - self.done)))

    def long_share(self) -> float:
        """The share of long dialogues: none at first, when the model learns to copy."""
        return _LONG_SHARE if self.done > _LONG_FROM else 0.0

    def step(self, tokens: int) -> None:
        """Count a step of `tokens` tokens and the time since the last."""
        now = time.monotonic()
        self.seconds, self._since = self.seconds + now - self._since, now
        self.steps, self.tokens = self.steps + 1, self.tokens + tokens


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(prog="python -m demo_model.train", description=__doc__.split("\n\n")[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=60.0, help="how long to train (default: %(default)g)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the dialogues and of the first weights (default: %(default)d)")
    parser.add_argument("--out", type=Path, default=CHECKPOINT, help="folder to write the checkpoint to")
    parser.add_argument("--state", type=Path, help="file that keeps the whole state; taken up again if it exists")
    parser.add_argument("--start", type=Path, help="checkpoint folder to start from, instead of fresh weights")
    parser.add_argument("--save-every", type=float, default=5.0, metavar="MINUTES", help="default: %(default)g")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch (default: %(default)d)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    rng = random.Random(f"training {options.seed}")
    tokenizer, model = _start(options.start, rng)
    train(model, tokenizer, rng, minutes=options.minutes, out=options.out, state=options.state, save_every=options.save_every)


def _start(folder: Path | None, rng: random.Random) -> tuple[PreTrainedTokenizerFast, LlamaForCausalLM]:
    if folder is not None:
        return AutoTokenizer.from_pretrained(folder), LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    written = (dialogues.write(rng, most_characters=900, longest_count=10) for _ in range(12_000))
    tokenizer = train_tokenizer((message.content for dialogue in written for message in dialogue.messages), words=_WORDS)
    return tokenizer, new_model(tokenizer)


def train(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    rng: random.Random,
    *,
    minutes: float,
    out: Path,
    state: Path | None,
    save_every: float,
) -> None:
    """Train `model` for `minutes` and write it to `out`, also every `save_every` minutes."""
    print(f"{sum(weight.numel() for weight in model.parameters()):,} weights, {len(tokenizer)} tokens", flush=True)
    optimizers = _optimizers(model)
    progress = Progress(limit=minutes * 60)
    if state is not None and state.exists():
        _load(state, model, optimizers, progress)
    saved, loss_sum = progress.seconds, 0.0
    for batch in batches(tokenizer, rng, tokens=6144, long_share=progress.long_share):
        for optimizer, highest in zip(optimizers, (_MATRIX_RATE, _OTHER_RATE), strict=True):
            optimizer.param_groups[0]["lr"] = highest * progress.rate
        loss_sum += _step(model, optimizers, batch)
        progress.step(batch.ids.numel())
        if progress.steps % 50 == 0:
            speed = progress.tokens / progress.seconds
            print(f"{progress.seconds / 60:5.1f} min  step {progress.steps:5d}  loss {loss_sum / 50:.4f}  {speed:,.0f} tokens/s", flush=True)
            loss_sum = 0.0
        if progress.done >= 1 or progress.seconds - saved > save_every * 60:
            saved = progress.seconds
            save(model, tokenizer, out)
            if state is not None:
                _keep(state, model, optimizers, progress)
        if progress.done >= 1:
            break
    print(f"{progress.tokens:,} tokens in {progress.seconds / 60:.1f} minutes; written to {out}", flush=True)


def _step(model: LlamaForCausalLM, optimizers: tuple[torch.optim.Optimizer, ...], batch: Batch) -> float:
    weights = batch.weights[:, 1:]
    learned = weights > 0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        states = model.model(input_ids=batch.ids[:, :-1], use_cache=False).last_hidden_state
        logits = model.lm_head(states[learned])
    losses = torch.nn.functional.cross_entropy(logits.float(), batch.ids[:, 1:][learned], reduction="none")
    loss = (losses * weights[learned]).sum() / weights.sum()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def _optimizers(model: LlamaForCausalLM) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for the embeddings and the norms."""
    matrices = [weight for name, weight in model.named_parameters() if weight.ndim == 2 and "layers" in name]  # noqa: PLR2004
    others = [weight for name, weight in model.named_parameters() if weight.ndim != 2 or "layers" not in name]  # noqa: PLR2004
    return (
        torch.optim.Muon(matrices, weight_decay=0.02, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0),
    )


def _keep(state: Path, model: LlamaForCausalLM, optimizers: tuple[torch.optim.Optimizer, ...], progress: Progress) -> None:
    counts = {"seconds": progress.seconds, "steps": progress.steps, "tokens": progress.tokens}
    torch.save({"model": model.state_dict(), "optimizers": [each.state_dict() for each in optimizers], "progress": counts}, state)


def _load(state: Path, model: LlamaForCausalLM, optimizers: tuple[torch.optim.Optimizer, ...], progress: Progress) -> None:
    kept = torch.load(state)
    model.load_state_dict(kept["model"])
    for optimizer, kept_optimizer in zip(optimizers, kept["optimizers"], strict=True):
        optimizer.load_state_dict(kept_optimizer)
    progress.seconds, progress.steps, progress.tokens = (kept["progress"][key] for key in ("seconds", "steps", "tokens"))


if __name__ == "__main__":
    main()
