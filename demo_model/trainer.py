"""One training process: its optimizers, its steps, its progress, and the averaging with its peers.

Knows nothing of what the dialogues say.
"""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import distributed
from transformers import LlamaForCausalLM

from demo_model import forward
from demo_model.batches import Batch

_MATRIX_RATE, _OTHER_RATE = 5e-3, 3e-3
_WARM_UP_STEPS = 60
_AVERAGE_EVERY = 4
_REPORT_EVERY = 40
_ROUND = 256
_LONGEST_STEP_S = 30.0  # more, and the computer slept: that counts for nothing


@dataclass
class Progress:
    """How far the run is: seconds trained of its limit, steps taken, tokens seen by this process.

    `share`: what its learning rates are, of those that fresh weights learn with.
    """

    limit: float
    share: float = 1.0
    seconds: float = 0.0
    steps: int = 0
    tokens: int = 0

    @property
    def done(self) -> float:
        """The share of the time limit that is used up, from 0 to 1."""
        return min(1.0, self.seconds / self.limit)

    @property
    def rate(self) -> float:
        """What the learning rate is multiplied with now: a short rise, a plateau, a straight fall to nothing."""
        falling = max(0.01, min(1.0, 2 * (1 - self.done)))
        return self.share * min(1.0, (self.steps + 1) / _WARM_UP_STEPS) * falling


class Trainer:
    """Trains a model on batches; several trainers in as many processes average their weights every few steps."""

    def __init__(self, model: LlamaForCausalLM, progress: Progress, *, keep_embeddings: bool = False) -> None:
        """`keep_embeddings`: embeddings and norms stay as they are.

        AdamW moves the rows of rare tokens, such as large numbers, as far as any, on next to no evidence: a short training of
        good weights spoils them.
        """
        self.model = model
        self.progress = progress
        # Muon for the matrices inside the layers, AdamW for the embeddings and the norms.
        named = list(model.named_parameters())
        matrices = [weight for name, weight in named if "_proj" in name]
        others = [weight for name, weight in named if "_proj" not in name]
        self._rates = (_MATRIX_RATE, 0.0 if keep_embeddings else _OTHER_RATE)
        self._optimizers: tuple[torch.optim.Optimizer, torch.optim.Optimizer] = (
            torch.optim.Muon(matrices, weight_decay=0.02, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0),
        )

    def train(self, batches: Iterator[Batch]) -> Iterator[float]:
        """Step through `batches` until the time is up; yields the mean loss after every few steps."""
        since, losses = time.monotonic(), []
        # Peers may only part where they agree on the clock: just after they have averaged.
        while self.progress.done < 1 or self.progress.steps % _AVERAGE_EVERY:
            batch = next(batches)
            losses.append(self._step(batch))
            now = time.monotonic()
            self.progress.seconds += min(now - since, _LONGEST_STEP_S)
            since = now
            self.progress.steps += 1
            self.progress.tokens += batch.ids.numel()
            if self.progress.steps % _AVERAGE_EVERY == 0:
                self._average()
            if self.progress.steps % _REPORT_EVERY == 0:
                yield sum(losses) / len(losses)
                losses.clear()

    def keep(self, file: Path) -> None:
        """Write all that `take_up` needs."""
        kept = [optimizer.state_dict() for optimizer in self._optimizers]
        torch.save(
            {"model": self.model.state_dict(), "optimizers": kept, "progress": asdict(self.progress)}, file
        )

    def take_up(self, file: Path) -> None:
        """Go on where `keep` left off; the time limit stays this trainer's own."""
        kept = torch.load(file)
        self.model.load_state_dict(kept["model"])
        for optimizer, state in zip(self._optimizers, kept["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        for count in ("seconds", "steps", "tokens"):
            setattr(self.progress, count, kept["progress"][count])

    def _step(self, batch: Batch) -> float:
        for optimizer, highest in zip(self._optimizers, self._rates, strict=True):
            optimizer.param_groups[0]["lr"] = highest * self.progress.rate
        weights = batch.weights[:, 1:].flatten()
        learned = _padded(weights.nonzero().flatten())
        states = forward.last_states(self.model, batch.ids[:, :-1]).flatten(0, 1)[learned]
        targets = batch.ids[:, 1:].flatten()[learned]
        losses = torch.nn.functional.cross_entropy(
            forward.logits(self.model, states), targets, reduction="none"
        )
        loss = (losses * weights[learned]).sum() / weights[learned].sum()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self._optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return loss.item()

    def _average(self) -> None:
        """Share weights and the clock, so that every process ends at the same step."""
        if not distributed.is_initialized():
            return
        weights = [weight.data for weight in self.model.parameters()]
        shared = torch.cat([*(weight.flatten() for weight in weights), torch.tensor([self.progress.seconds])])
        distributed.all_reduce(shared)
        shared /= distributed.get_world_size()
        means = torch.split(shared[:-1], [weight.numel() for weight in weights])
        for weight, mean in zip(weights, means, strict=True):
            weight.copy_(mean.view_as(weight))
        self.progress.seconds = float(shared[-1])


def _padded(places: torch.Tensor) -> torch.Tensor:
    """`places` with place 0, which never weighs, repeated up to a round number: few shapes keep the kernels' caches small."""
    return torch.cat((places, places.new_zeros(-len(places) % _ROUND)))
