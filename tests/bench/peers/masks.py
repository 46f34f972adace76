"""`python -m tests.bench.peers.masks`: the cost of a schema per token, here and in vLLM, with 131,072 tokens.

Both serve the same random weights over HTTP and take turns. A schema's cost is the time of a token with it, less the
time of one without. Needs `make vllm`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from statistics import median

import msgspec

from tests.bench.endpoints import model_of
from tests.bench.engine.large_vocabulary import SIZE, large_tokenizer
from tests.bench.engine.masks import PEOPLE
from tests.bench.engine.shapes import Shape
from tests.bench.engine.weights import save
from tests.bench.peers.measurement import DTYPE, LIMIT_S, WARM_UP_TOKENS
from tests.bench.peers.registry import TITLES, PeerName, peers
from tests.bench.peers.servers import Served, served
from tests.bench.processes import MeasurementFailed, observe, running
from tests.bench.records import Job, Measure, Observed, ServerApi
from tests.bench.servers import ServerLocation
from tests.bench.statistics import figures
from tests.server_process import free_port

CLIENTS = (1, 16)
ITEMS = 1_000
"""More items than fit in a reply, so that none ends before its length."""
SCHEMA = PEOPLE | {"minItems": ITEMS}
WITH_SCHEMA: dict[str, object] = {
    "response_format": {"type": "json_schema", "json_schema": {"name": "people", "schema": SCHEMA}}
}


class ReplyTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds per token of one reply, with so many clients at once; plain, or with the schema."""

    who: PeerName
    clients: int
    held: bool
    ms: float


def main() -> int:
    """Measure in turns, and print a table; return 2 if vLLM is not installed."""
    options = _options()
    (peer,) = (one for one in peers() if one.who is PeerName.VLLM)
    if not peer.installed:
        print(f"There is no vLLM in {peer.home}: make vllm", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = large_tokenizer()
        shape = Shape(name="wide", hidden=256, layers=6, heads=4, intermediate=688, vocabulary=len(tokenizer))
        save(shape, Path(folder))
        tokenizer.save_pretrained(folder)
        seen = [
            one
            for number in range(options.rounds)
            for who in (PeerName.MIDSTREAM, PeerName.VLLM)[:: -1 if number % 2 else 1]
            for one in _turn(who, served(who, {PeerName.VLLM: peer}), folder, options.tokens)
        ]
    print(table(seen))
    return 0


def table(seen: list[ReplyTiming]) -> str:
    """Return medians of all rounds as text. Pure."""
    lines = [f"{SIZE:,} tokens; ms a token{'':22}plain   schema   the schema's cost"]
    for clients in CLIENTS:
        for who in (PeerName.MIDSTREAM, PeerName.VLLM):
            plain, held = (
                median(one.ms for one in seen if (one.who, one.clients, one.held) == (who, clients, is_held))
                for is_held in (False, True)
            )
            name = f"{TITLES[who]}, {clients} at once"
            lines.append(f"{name:40}{plain:12.2f}{held:9.2f}{held - plain:12.2f} ({held / plain:.2f} times)")
    return "\n".join(lines)


def _turn(who: PeerName, one: Served, model: str, tokens: int) -> Iterator[ReplyTiming]:
    """Start a server; ask for plain replies and for replies with the schema. Raises MeasurementFailed."""
    with tempfile.TemporaryDirectory(prefix="midstream-bench-") as folder:
        place = ServerLocation(port=free_port(), folder=folder, model=model, device="cpu", dtype=DTYPE)
        with running(one.server, place) as pid:
            name = model_of(place.url)
            for held in (False, True):
                for clients in CLIENTS:
                    for new in (WARM_UP_TOKENS, tokens):
                        more = one.fields | (WITH_SCHEMA if held else {})
                        job = _job(url=place.url, model=name, pid=pid, clients=clients, new=new, more=more)
                        seen = _ms(observe(job), clients, new)
                    yield ReplyTiming(who=who, clients=clients, held=held, ms=seen)
                    print(
                        f"{TITLES[who]}, {clients}, {'schema' if held else 'plain'}: {seen:.2f}", flush=True
                    )


def _job(*, url: str, model: str, pid: int, clients: int, new: int, more: dict[str, object]) -> Job:
    return Job(
        measure=Measure.LOAD,
        api=ServerApi.CHAT,
        url=url,
        model=model,
        pid=pid,
        clients=clients,
        replies=1,
        max_new_tokens=new,
        cancel_after_texts=0,
        limit_s=LIMIT_S,
        prompts=tuple(f"{Random(f'{new} {number}').getrandbits(160):x}" for number in range(clients)),
        more=more,
        anew=True,
    )


def _ms(observed: Observed, clients: int, new: int) -> float:
    """Return the milliseconds per token of each reply. Raises MeasurementFailed if replies ended early."""
    shown = figures(observed, Observed(), Observed())
    if shown.tokens_per_reply != new or not shown.tokens_per_s:
        raise MeasurementFailed(f"replies had {shown.tokens_per_reply} of {new} tokens")
    return 1000 * clients / shown.tokens_per_s


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peers.masks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128, help="of each reply")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
