"""`python -m tests.bench.peers.masks`: the cost of a schema per token, here and in vLLM, with 131,072 tokens.

Both serve the same random weights over HTTP and take turns. A schema's cost is the time of a token with it, less the
time of one without. Needs `make vllm`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from random import Random
from statistics import median

from tests.bench.clients import ServerApi
from tests.bench.engine.masks import PEOPLE
from tests.bench.engine.weights import large_tokenizer, save_wide
from tests.bench.load_generator import TOKENS_PER_REPLY, TOKENS_PER_S, Job, figures, observe
from tests.bench.peers.__main__ import DTYPE, LIMIT_S, WARM_UP_TOKENS
from tests.bench.peers.install import TITLES, Peer, PeerName, peers
from tests.bench.peers.servers import served
from tests.bench.report import MeasurementFailed, aligned, say
from tests.bench.servers import model_of, running

CLIENTS = (1, 16)
BOTH = (PeerName.MIDSTREAM, PeerName.VLLM)
SCHEMA = PEOPLE | {"minItems": 1_000}
"""More items than fit in a reply, so that none ends before its length."""
WITH_SCHEMA: dict[str, object] = {
    "response_format": {"type": "json_schema", "json_schema": {"name": "people", "schema": SCHEMA}}
}


def main() -> int:
    """Measure in turns, and print medians; return 2 if vLLM is not installed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peers.masks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128, help="of each reply")
    options = parser.parse_args()
    here = {one.who: one for one in peers()}
    if not here[PeerName.VLLM].installed:
        print(f"There is no vLLM in {here[PeerName.VLLM].home}: make vllm", file=sys.stderr)
        return 2
    seen: dict[tuple[PeerName, int, bool], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        save_wide(Path(folder), large_tokenizer())
        for number in range(options.rounds):
            for who in BOTH[:: -1 if number % 2 else 1]:
                for key, ms in _turn(who, here, folder, options.tokens).items():
                    seen.setdefault(key, []).append(ms)
    rows: list[tuple[str, ...]] = [("ms a token", "plain", "schema", "the schema's cost", "times")]
    for clients in CLIENTS:
        for who in BOTH:
            plain, held = (median(seen[who, clients, is_held]) for is_held in (False, True))
            cells = (f"{value:.2f}" for value in (plain, held, held - plain, held / plain))
            rows.append((f"{TITLES[who]}, {clients} at once", *cells))
    print(aligned(rows, numbers=True))
    return 0


def _turn(
    who: PeerName, here: Mapping[PeerName, Peer], model: str, tokens: int
) -> dict[tuple[PeerName, int, bool], float]:
    """Start a server; return milliseconds a token of each reply, plain and with the schema. Raises MeasurementFailed."""
    server, fields = served(who, here)
    found = {}
    with running(server, model=model, device="cpu", dtype=DTYPE) as (url, pid):
        name = model_of(url)
        for held in (False, True):
            for clients in CLIENTS:
                for new in (WARM_UP_TOKENS, tokens):
                    prompts = (f"{Random(f'{new} {number}').getrandbits(160):x}" for number in range(clients))
                    job = Job(
                        api=ServerApi.CHAT, url=url, model=name, pid=pid, clients=clients, max_new_tokens=new,
                        limit_s=LIMIT_S, prompts=tuple(prompts), more=fields | (WITH_SCHEMA if held else {}), anew=True,
                    )  # fmt: skip
                    seen = figures(observe(job))
                    if seen[TOKENS_PER_REPLY] != new:
                        raise MeasurementFailed(f"replies had {seen[TOKENS_PER_REPLY]:.0f} of {new} tokens")
                    found[who, clients, held] = 1000 * clients / seen[TOKENS_PER_S]
                say(
                    f"{TITLES[who]}, {clients}, {'schema' if held else 'plain'}: {found[who, clients, held]:.2f}"
                )
    return found


if __name__ == "__main__":
    sys.exit(main())
