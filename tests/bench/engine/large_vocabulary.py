"""A tokenizer as large as those of common models: byte-level BPE, trained once on Python's own library."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tests.bench.engine.weights import TEMPLATE

CACHE = Path(__file__).parents[3] / ".cache" / "bench"
SIZE = 131_072
END = "<|end|>"


def large_tokenizer(size: int = SIZE, texts: Path | None = None) -> Any:
    """Return the tokenizer, trained in a minute or read. `texts`: a folder of Python files, or None for Python's own."""
    file = CACHE / f"vocabulary-{size}.json"
    if not file.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        _trained(size, texts or Path(sysconfig.get_path("stdlib"))).save(str(file))
    untyped: Any = PreTrainedTokenizerFast
    tokenizer = untyped(tokenizer_file=str(file), eos_token=END)
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def _trained(size: int, folder: Path) -> Tokenizer:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(_texts(folder), trainer)
    return backend


def _texts(folder: Path) -> Iterator[str]:
    for file in sorted(folder.rglob("*.py")):
        yield file.read_text(errors="replace")
