"""Trains the tokenizer and the demo model and writes the checkpoint: `python -m demo_model.train`.

The run is measured in minutes; with --state it can be stopped and taken up again.
"""

import argparse
import random
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.multiprocessing.spawn import spawn
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

from demo_model import dialogues
from demo_model.batches import batches
from demo_model.model import carried_over, new_model, save
from demo_model.tokenizer import train_tokenizer
from demo_model.trainer import Progress, Trainer

CHECKPOINT = Path(__file__).parent / "checkpoint"
_WORDS = 1079


def main() -> None:
    """Read the command line and train, in as many processes as asked for."""
    parser = argparse.ArgumentParser(prog="python -m demo_model.train", description="Trains the demo model.")
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="how long to train (default: %(default)g)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of dialogues and first weights (default: %(default)d)"
    )
    parser.add_argument("--out", type=Path, default=CHECKPOINT, help="folder to write the checkpoint to")
    parser.add_argument(
        "--start", type=Path, help="checkpoint folder to start from, instead of fresh weights"
    )
    parser.add_argument(
        "--new-tokenizer",
        action="store_true",
        help="learn the tokenizer anew, and carry the weights of --start over to it",
    )
    parser.add_argument(
        "--rate", type=float, default=1.0, help="share of the usual learning rates (default: %(default)g)"
    )
    parser.add_argument(
        "--state", type=Path, help="file that keeps the whole state; taken up again if it exists"
    )
    parser.add_argument(
        "--save-every", type=float, default=4.0, metavar="MINUTES", help="default: %(default)g"
    )
    parser.add_argument(
        "--workers", type=int, default=2, help="processes of one thread each (default: %(default)d)"
    )
    parser.add_argument(
        "--keep-embeddings",
        action="store_true",
        help="train the matrices alone: for a short training of good weights",
    )
    parser.add_argument(
        "--mixed-lengths",
        action="store_true",
        help="dialogues of all lengths from the first step on: for weights that have seen the short ones",
    )
    parser.add_argument(
        "--tokens",
        type=int,
        default=3072,
        help="of a step, about; fewer make more steps in the same time (default: %(default)d)",
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as meeting_place:
        start: Any = spawn
        start(work, (options, Path(meeting_place) / "workers"), nprocs=options.workers)


def work(rank: int, options: argparse.Namespace, meeting_place: Path) -> None:
    """Train in one process; the first also reports and writes."""
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    distributed.init_process_group("gloo", f"file://{meeting_place}", rank=rank, world_size=options.workers)
    resumed = options.state is not None and options.state.exists()
    tokenizer, model = _begin(options.out if resumed else options.start, options)
    progress = Progress(limit=options.minutes * 60, share=options.rate)
    trainer = Trainer(model, progress, keep_embeddings=options.keep_embeddings)
    if resumed:
        trainer.take_up(options.state)
    _report_and_save(rank, trainer, tokenizer, options)
    distributed.destroy_process_group()


def _begin(
    folder: Path | None, options: argparse.Namespace
) -> tuple[PreTrainedTokenizerBase, LlamaForCausalLM]:
    if folder is None:
        tokenizer = _new_tokenizer(options.seed)
        return tokenizer, new_model(tokenizer)
    known = AutoTokenizer.from_pretrained(folder)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if not options.new_tokenizer or folder == options.out:
        return known, model
    tokenizer = _new_tokenizer(options.seed)
    return tokenizer, carried_over(model, known, tokenizer)


def _new_tokenizer(seed: int) -> PreTrainedTokenizerBase:
    rng = random.Random(f"tokenizer {seed}")
    written = (dialogues.write(rng, most_characters=900, longest_count=10) for _ in range(12_000))
    texts = (message.content for dialogue in written for message in dialogue.messages)
    return train_tokenizer(texts, words=_WORDS)


def _report_and_save(
    rank: int, trainer: Trainer, tokenizer: PreTrainedTokenizerBase, options: argparse.Namespace
) -> None:
    progress, saved = trainer.progress, trainer.progress.seconds
    rng = random.Random(f"training {options.seed} {rank} {progress.steps}")
    ready = batches(
        tokenizer,
        rng,
        tokens=options.tokens,
        done=lambda: 1.0 if options.mixed_lengths else progress.done,
    )
    for loss in trainer.train(ready):
        if rank == 0:
            minutes, speed = progress.seconds / 60, options.workers * progress.tokens / progress.seconds
            print(
                f"{minutes:5.1f} min  step {progress.steps:5d}  loss {loss:.4f}  {speed:,.0f} tokens/s",
                flush=True,
            )
        if rank == 0 and progress.seconds - saved > options.save_every * 60:
            saved = progress.seconds
            save(trainer.model, tokenizer, options.out)
            if options.state is not None:
                trainer.keep(options.state)
    if rank == 0:
        save(trainer.model, tokenizer, options.out)
        if options.state is not None:
            trainer.keep(options.state)
        print(f"{options.workers * progress.tokens:,} tokens; written to {options.out}", flush=True)


if __name__ == "__main__":
    main()
