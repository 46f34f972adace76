"""`python -m tests.bench.engine.masks`: the effect of masks on plain streams beside them.

A vocabulary of 131,072 tokens, random weights. Gaps are between the texts of the plain streams, with sixteen others
beside them: first plain ones too, then streams with a schema.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

import msgspec
import torch

from engine.execution.executor import LoadedModel
from engine.grammar import HERMES_FORM, GrammarSource, GrammarWriter
from engine.loading.loader import load
from engine.machine import EngineOptions
from engine.messages import Chunk, JsonSchema, ReplySpec
from engine.scheduling.core import EngineCore
from engine.text.reply_text import PreparedRequest, ReplyStep
from tests.bench.engine.ours import sampling
from tests.bench.engine.weights import LARGE, large_tokenizer, save_wide
from tests.bench.report import Measured, Report, at_most, percentile_ms

GAP = at_most(1.2)
"""p99 of the gaps of plain streams beside others with a schema, as a multiple of that beside plain ones."""
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0},
        "tags": {"type": "array", "items": {"enum": ["new", "old", "other"]}},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
PEOPLE = {"type": "array", "minItems": 100_000, "items": PERSON}
"""An endless list of typical objects."""


def main() -> int:
    """Measure; return 0 if the target is met."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.engine.masks", description=__doc__)
    parser.add_argument("--vocabulary", type=int, default=LARGE)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=16, help="plain ones, and as many beside them")
    parser.add_argument("--tokens", type=int, default=256, help="of each stream")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, help="a file for the figures, as JSON")
    given = parser.parse_args()
    torch.set_num_threads(given.threads or torch.get_num_threads())
    with tempfile.TemporaryDirectory() as folder:
        save_wide(Path(folder), large_tokenizer(given.vocabulary))
        model = load(EngineOptions(model=folder, device="cpu", dtype="bfloat16", max_batch=2 * given.streams))
        return measured(model, rounds=given.rounds, streams=given.streams, tokens=given.tokens).conclude(
            given.out
        )


def measured(model: LoadedModel, *, rounds: int, streams: int, tokens: int) -> Report:
    """Measure the gaps beside plain streams and beside others with a schema, in turns."""
    assert model.grammars is not None
    writer = GrammarWriter(model.grammars.vocabulary.specials, calls=HERMES_FORM)
    source = writer.write(ReplySpec(format=JsonSchema(json.dumps(PEOPLE))))
    gaps: dict[GrammarSource | None, list[float]] = {None: [], source: []}
    for _ in range(rounds):
        for beside, found in gaps.items():
            found.append(_gap_ms(model, beside, streams=streams, tokens=tokens))
    plain, held = (median(found) for found in gaps.values())
    label = f"gap p99 of {streams} plain streams, beside schemas / beside plain ones"
    readings = {"ms beside plain ones": plain, "ms beside schemas": held}
    return Report(findings=[Measured(label=label, value=held / plain, readings=readings, target=GAP)])


def _gap_ms(model: LoadedModel, beside: GrammarSource | None, *, streams: int, tokens: int) -> float:
    """Return p99 of the gaps between the texts of plain streams, once all run."""
    core, names = EngineCore(model), [f"plain {number}" for number in range(streams)]
    for number in range(streams):
        core.submit(_request(names[number], tokens, number))
        core.submit(_request(f"other {number}", 2 * tokens, number, beside))
    arrivals: dict[str, list[float]] = {}
    while core.busy and any(len(arrivals.get(name, ())) < tokens - 1 for name in names):
        reported = [output.request_id for output in core.step() if isinstance(output, Chunk)]
        now = time.perf_counter()
        for name in reported:
            arrivals.setdefault(name, []).append(now)
    started = max(times[0] for times in arrivals.values())
    gaps = [
        later - earlier for name in names for earlier, later in pairwise(arrivals[name]) if earlier >= started
    ]
    return percentile_ms(gaps, 0.99)


def _request(name: str, tokens: int, number: int, source: GrammarSource | None = None) -> PreparedRequest:
    how = msgspec.structs.replace(sampling(tokens), ignore_eos=True, seed=number)
    prompt = [(37 * place + 11 * number) % 250 + 1 for place in range(64)]
    return PreparedRequest(name, prompt, how, _Ticks(), grammar=source)


class _Ticks:
    """A reply that has a text for each token, so that each is an arrival."""

    written = ""
    stop_string: str | None = None

    def push(self, _token_id: int) -> ReplyStep:
        return ReplyStep((".",))

    def flush(self) -> tuple[str, ...]:
        return ()


if __name__ == "__main__":
    sys.exit(main())
