"""`python -m tests.bench.engine.translation`: translations per second of the engine, transformers and CTranslate2.

Random weights of the size of Marian's, so that no hub is needed: sources of 8 to 40 tokens. Every translation has
the same length, which is forced and counted, so that a padded batch wastes no step on finished ones. Ours serves 1, 8
and 32 at once; `generate` takes one after the other, then all of them padded; CTranslate2 takes all of them as one
batch. All have the same weights in float32 and the same number of threads. They take turns in rotating order; the
medians are reported. CTranslate2's wheel is installed below `.cache` the first time; if that fails, it is left out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import MarianConfig, MarianMTModel

from engine.execution.executor import LoadedModel, TranslationConfig
from engine.kv_cache import KVBudget
from engine.loading.loader import TRANSLATION_PAGE as PAGE
from engine.loading.loader import PreparedTranslator
from engine.messages import Languages, Params
from engine.scheduling.core import EngineCore
from engine.text.reply_text import NOTHING, Piece, PreparedRequest, ReplyStep, resolve_sampling

LEVELS = (1, 8, 32)
QUICK = (1, 4)
VOCABULARY, PAD, END = 32_000, 31_999, 0
SHORTEST, LONGEST = 8, 40
WRITTEN = 24
"""Tokens of each translation."""
POSITIONS = 512
CTRANSLATE2 = "ctranslate2==4.8.5"
CACHE = Path(".cache/ctranslate2")

Contender = Callable[[int], int]
"""Translates so many at once; returns the number of tokens that it wrote."""


class Silent:
    """A reply whose text is dropped."""

    written, stop_string = "", None

    def push(self, token_id: int) -> ReplyStep:
        """Take a token."""
        return NOTHING

    def flush(self) -> tuple[Piece, ...]:
        """Return nothing."""
        return ()


class Ours:
    """The engine's core, in this process."""

    def __init__(self, module: MarianMTModel) -> None:
        prepared = PreparedTranslator(module)
        tokens = max(LEVELS) * 2 * (LONGEST + PAGE)
        budget = KVBudget(tokens // PAGE, PAGE, 2 * POSITIONS, prepared.bytes_per_token)
        self._core = EngineCore(
            LoadedModel(
                "marian", prepared.module, None, Params(), frozenset(), max(LEVELS), VOCABULARY, budget,  # type: ignore[arg-type]
                translation_config=TranslationConfig(Languages((), (), POSITIONS), POSITIONS, VOCABULARY),
            )
        )  # fmt: skip
        self._calls = 0

    def __call__(self, at_once: int) -> int:
        """Translate. The salt is new each time, so that no cache helps."""
        self._calls += 1
        sampling = resolve_sampling(Params(max_new_tokens=WRITTEN, do_sample=False), Params())
        for number, source in enumerate(sources(at_once)):
            self._core.submit(
                PreparedRequest(
                    f"{self._calls}.{number}",
                    [PAD],
                    sampling,
                    Silent(),
                    cache_salt=f"{self._calls}",
                    source=source,
                )
            )
        before = self._core.statistics().generated_tokens
        while self._core.busy:
            self._core.step()
        return self._core.statistics().generated_tokens - before


class Generate:
    """`generate` of transformers: one after the other, or all of them padded."""

    def __init__(self, module: Any, *, padded: bool) -> None:
        self._module = module
        self._padded = padded

    def __call__(self, at_once: int) -> int:
        """Translate."""
        inputs, made = sources(at_once), 0
        for some in [inputs] if self._padded else [[one] for one in inputs]:
            longest = max(map(len, some))
            ids = torch.tensor([[*one, *[PAD] * (longest - len(one))] for one in some])
            written = self._module.generate(
                ids,
                attention_mask=ids.ne(PAD).long(),
                min_new_tokens=WRITTEN,
                max_new_tokens=WRITTEN,
                do_sample=False,
                num_beams=1,
            )
            made += written[:, 1:].numel()
        return made


class CTranslate2:
    """CTranslate2 with the same weights in the same precision, as many threads, one batch."""

    def __init__(self, module: MarianMTModel, folder: Path) -> None:
        import ctranslate2  # type: ignore[import-not-found]  # noqa: PLC0415 - it is optional
        from ctranslate2.converters import transformers as converters  # type: ignore[import-not-found]  # noqa: PLC0415

        spec = converters.MarianMTLoader().get_model_spec(module)
        names = [f"t{number}" for number in range(VOCABULARY)]
        names[END] = "</s>"
        del names[PAD]  # it starts from nothing in the padding token's place
        spec.register_source_vocabulary(names)
        spec.register_target_vocabulary(names)
        spec.config.eos_token, spec.config.unk_token = "</s>", "t1"
        spec.validate()
        spec.optimize(quantization="float32")
        folder.mkdir()
        spec.save(str(folder))
        self._names = names
        self._translator = ctranslate2.Translator(
            str(folder),
            device="cpu",
            compute_type="float32",
            inter_threads=1,
            intra_threads=torch.get_num_threads(),
        )

    def __call__(self, at_once: int) -> int:
        """Translate, all of them as one batch."""
        made = self._translator.translate_batch(
            [[self._names[token] for token in one] for one in sources(at_once)],
            beam_size=1, max_decoding_length=WRITTEN, min_decoding_length=WRITTEN, max_input_length=0, max_batch_size=0,
        )  # fmt: skip
        return sum(len(one.hypotheses[0]) for one in made)


def install() -> None:
    """Install CTranslate2 alone below `.cache`. Raises CalledProcessError."""
    if not CACHE.exists():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(CACHE), CTRANSLATE2]
        subprocess.run(pip, check=True)
    if str(CACHE) not in sys.path:
        sys.path.append(str(CACHE))


def sources(count: int) -> list[list[int]]:
    """Return so many sources, of all lengths."""
    lengths = [SHORTEST + 13 * number % (LONGEST - SHORTEST + 1) for number in range(count)]
    return [
        [(7919 * place + 31 * count + 5) % (VOCABULARY - 10) + 2 for place in range(length)]
        for length in lengths
    ]


def model(*, small: bool) -> MarianMTModel:
    """Return a Marian of random weights, six layers of 512; `small`: two of 64. It never ends by itself."""
    torch.manual_seed(1)
    width, layers = (64, 2) if small else (512, 6)
    module = MarianMTModel(
        MarianConfig(
            vocab_size=VOCABULARY, decoder_vocab_size=VOCABULARY, d_model=width, encoder_layers=layers,
            decoder_layers=layers, encoder_attention_heads=8, decoder_attention_heads=8, encoder_ffn_dim=4 * width,
            decoder_ffn_dim=4 * width, max_position_embeddings=POSITIONS, scale_embedding=True,
            activation_function="swish", pad_token_id=PAD, eos_token_id=END, decoder_start_token_id=PAD,
            forced_eos_token_id=None,
        )
    ).eval()  # fmt: skip
    module.final_logits_bias[0, END] = -1e4
    return module


def contenders(folder: Path, *, small: bool) -> dict[str, Contender]:
    """Return the available contenders, all with the same weights."""
    found: dict[str, Contender] = {
        "midstream": Ours(model(small=small)),
        "generate, one after the other": Generate(model(small=small), padded=False),
        "generate, a padded batch": Generate(model(small=small), padded=True),
    }
    try:
        install()
        found["CTranslate2, a batch"] = CTranslate2(model(small=small), folder)
    except (subprocess.CalledProcessError, ImportError, ValueError, AttributeError, RuntimeError) as why:
        print(f"without CTranslate2: {why}", flush=True)
    return found


def measure(
    found: dict[str, Contender], *, rounds: int, levels: Sequence[int]
) -> dict[str, dict[int, float]]:
    """Return the median tokens per second, by contender and level. The first round warms up.

    Raises RuntimeError if one wrote another number of tokens than requested.
    """
    names = list(found)
    taken: dict[str, dict[int, list[float]]] = {name: {level: [] for level in levels} for name in found}
    for number in range(rounds + 1):
        for level in levels:
            for name in names[number % len(names) :] + names[: number % len(names)]:
                began = time.perf_counter()
                tokens = found[name](level)
                if tokens != level * WRITTEN:
                    raise RuntimeError(f"{name} wrote {tokens} tokens of {level * WRITTEN}")
                if number:
                    taken[name][level].append(tokens / (time.perf_counter() - began))
    return {name: {level: median(some) for level, some in of.items()} for name, of in taken.items()}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.engine.translation", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="a small model, one round: to see that all of it works"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="a file for the figures, as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, suppress(KeyboardInterrupt):
        found = contenders(Path(scratch) / "ct2", small=options.quick)
        levels = QUICK if options.quick else LEVELS
        figures = measure(found, rounds=1 if options.quick else options.rounds, levels=levels)
        print(f"tokens/s, float32, {torch.get_num_threads()} threads, at once: {', '.join(map(str, levels))}")
        for name, by_level in figures.items():
            print(f"  {name:32}" + "".join(f"{value:10,.0f}" for value in by_level.values()))
        if options.out:
            options.out.write_text(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
