"""`python -m tests.bench.engine.masks`: the cost of a mask, and the effect of masks on plain streams beside them.

A vocabulary of 131,072 tokens, random weights. Gaps are between the texts of the plain streams, with sixteen others
beside them: first plain ones too, then streams with a schema.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import torch
from llguidance import LLMatcher

from engine.execution.executor import LoadedModel
from engine.grammar import HERMES_FORM, GrammarCompiler, GrammarSource, GrammarWriter
from engine.loading.loader import load
from engine.messages import Chunk, JsonObject, JsonSchema, Regex, ReplySpec, Tool
from engine.scheduling.core import EngineCore
from engine.text.reply_text import PreparedRequest, ReplyStep
from tests.bench.engine.large_vocabulary import SIZE, large_tokenizer
from tests.bench.engine.midstream_contender import sampling
from tests.bench.engine.report import Target
from tests.bench.engine.shapes import Shape
from tests.bench.engine.weights import save
from tests.bench.statistics import percentile
from tests.schemas.corpus import in_the_wild

GAP = Target(1.2, at_most=True)
"""p99 of the gaps of plain streams beside others with a schema, as a multiple of that beside plain ones."""
PEOPLE = {
    "type": "array",
    "minItems": 100_000,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer", "minimum": 0},
            "tags": {"type": "array", "items": {"enum": ["new", "old", "other"]}},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": False,
    },
}
"""An endless list of typical objects."""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one grammar: milliseconds to compile it and for its first mask; microseconds a token with mask."""

    compile_ms: float
    first_mask_ms: float
    token_p50_us: float
    token_p99_us: float
    token_most_us: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All figures. `gaps_ms`: p99 of the gaps of plain streams, by round, by the streams beside them."""

    vocabulary: int
    costs: dict[str, Cost]
    gaps_ms: dict[str, list[float]]

    @property
    def ratio(self) -> float:
        """Ratio of the gaps beside schemas to those beside plain streams, by the medians of the rounds."""
        return median(self.gaps_ms["beside schemas"]) / median(self.gaps_ms["beside plain ones"])


def main() -> int:
    """Measure; return 0 if the target is met."""
    options = _options()
    torch.set_num_threads(options.threads or torch.get_num_threads())
    tokenizer = large_tokenizer(options.vocabulary)
    with tempfile.TemporaryDirectory() as folder:
        model = _model(tokenizer, Path(folder), options.streams * 2)
        report = measured(model, rounds=options.rounds, streams=options.streams, tokens=options.tokens)
    print(table(report))
    if options.out:
        options.out.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    return 0 if GAP.met_by(report.ratio) else 1


def measured(model: LoadedModel, *, rounds: int, streams: int, tokens: int) -> Report:
    """Take all figures of a loaded model."""
    assert model.grammars is not None
    compiler = model.grammars
    costs = {name: _cost(compiler, source, tokens) for name, source in _grammars(compiler)}
    gaps: dict[str, list[float]] = {"beside plain ones": [], "beside schemas": []}
    for _ in range(rounds):
        for beside, found in gaps.items():
            source = _people(compiler) if beside == "beside schemas" else None
            found.append(_gap_ms(model, source, streams=streams, tokens=tokens))
    return Report(vocabulary=compiler.vocabulary.size, costs=costs, gaps_ms=gaps)


def table(report: Report) -> str:
    """Return the figures as text."""
    lines = [f"{report.vocabulary:,} tokens", f"{'':28}compile ms  first ms  token p50 us  p99 us  most us"]
    for name, cost in report.costs.items():
        lines.append(
            f"{name:28}{cost.compile_ms:10.1f}{cost.first_mask_ms:10.2f}{cost.token_p50_us:14.0f}"
            f"{cost.token_p99_us:8.0f}{cost.token_most_us:9.0f}"
        )
    for beside, found in report.gaps_ms.items():
        lines.append(f"plain streams {beside}: gap p99 {', '.join(f'{gap:.1f}' for gap in found)} ms")
    lines.append(f"the latter, of the former: {report.ratio:.2f} (target: at most {GAP.value})")
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.engine.masks", description=__doc__)
    parser.add_argument("--vocabulary", type=int, default=SIZE)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=16, help="plain ones, and as many beside them")
    parser.add_argument("--tokens", type=int, default=256, help="of each stream, and of each grammar")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, help="a file for the figures, as JSON")
    return parser.parse_args()


def _model(tokenizer: Any, folder: Path, most: int) -> LoadedModel:
    shape = Shape(name="wide", hidden=256, layers=6, heads=4, intermediate=688, vocabulary=len(tokenizer))
    save(shape, folder)
    tokenizer.save_pretrained(folder)
    return load(str(folder), device="cpu", dtype="bfloat16", max_batch=most)


def _grammars(compiler: GrammarCompiler) -> Iterator[tuple[str, GrammarSource]]:
    """Yield typical requests: small schemas, large ones, text with calls."""
    writer = GrammarWriter(compiler.vocabulary.specials, calls=HERMES_FORM)
    requested = {
        "any JSON object": ReplySpec(format=JsonObject()),
        "a list of objects": ReplySpec(format=JsonSchema(json.dumps(PEOPLE))),
        "a pattern": ReplySpec(format=Regex("([A-Z][a-z]+ [a-z0-9]+[.,] )+")),
        "text with calls": ReplySpec(tools=(Tool("people", "", json.dumps(PEOPLE["items"])),)),
    }
    for case in in_the_wild():
        if case.name in {"github-workflows", "compose-spec", "snapcraft"}:
            requested[case.name] = ReplySpec(format=JsonSchema(case.text, strict=False))
    for name, spec in requested.items():
        source = writer.write(spec)
        assert source is not None
        yield name, source


def _people(compiler: GrammarCompiler) -> GrammarSource:
    return dict(_grammars(compiler))["a list of objects"]


def _cost(compiler: GrammarCompiler, source: GrammarSource, tokens: int) -> Cost:
    """Write replies of random tokens that the grammar allows, again and again: the matcher learns meanwhile."""
    began = time.perf_counter()
    matcher = compiler.matcher(source)
    compiled = time.perf_counter()
    mask = matcher.compute_bitmask()
    first = time.perf_counter()
    random = torch.Generator().manual_seed(0)
    times: list[float] = []
    while len(times) < tokens:
        if matcher.is_stopped():
            matcher.reset()
            mask = matcher.compute_bitmask()
        mask, seconds = _next(matcher, mask, random)
        times.append(seconds * 1e6)
    return Cost(
        compile_ms=(compiled - began) * 1000,
        first_mask_ms=(first - compiled) * 1000,
        token_p50_us=percentile(times, 0.5) or 0.0,
        token_p99_us=percentile(times, 0.99) or 0.0,
        token_most_us=max(times),
    )


def _next(matcher: LLMatcher, mask: bytes, random: torch.Generator) -> tuple[bytes, float]:
    bits = torch.frombuffer(bytearray(mask), dtype=torch.uint8).unsqueeze(1) >> torch.arange(
        8, dtype=torch.uint8
    )
    allowed = (bits & 1).flatten().nonzero().flatten()
    token = int(allowed[torch.randint(len(allowed), (1,), generator=random)])
    began = time.perf_counter()
    matcher.consume_token(token)
    mask = matcher.compute_bitmask()
    return mask, time.perf_counter() - began


def _gap_ms(model: LoadedModel, beside: GrammarSource | None, *, streams: int, tokens: int) -> float:
    """Return p99 of the gaps between the texts of plain streams, once all run."""
    core = EngineCore(model)
    for number in range(streams):
        core.submit(_request(f"plain {number}", tokens, number))
        core.submit(_request(f"other {number}", 2 * tokens, number, beside))
    arrivals: dict[str, list[float]] = {}
    while (
        any(len(arrivals.get(f"plain {number}", ())) < tokens - 1 for number in range(streams)) and core.busy
    ):
        reported = [output.request_id for output in core.step() if isinstance(output, Chunk)]
        now = time.perf_counter()
        for name in reported:
            arrivals.setdefault(name, []).append(now)
    started = max(times[0] for times in arrivals.values())
    plain = [times for name, times in arrivals.items() if name.startswith("plain")]
    gaps = [later - earlier for times in plain for earlier, later in pairwise(times) if earlier >= started]
    return (percentile(gaps, 0.99) or 0.0) * 1000


def _request(name: str, tokens: int, number: int, source: GrammarSource | None = None) -> PreparedRequest:
    how = msgspec.structs.replace(sampling(tokens), ignore_eos=True, seed=number)
    prompt = [(37 * place + 11 * number) % 250 + 1 for place in range(64)]
    return PreparedRequest(name, prompt, how, _Ticks(), grammar=source)


class _Ticks:
    """A reply that tells each token at once, so that each is an arrival."""

    def push(self, _token_id: int) -> ReplyStep:
        return ReplyStep((".",))

    def flush(self) -> tuple[str, ...]:
        return ()

    @property
    def written(self) -> str:
        return ""


if __name__ == "__main__":
    sys.exit(main())
