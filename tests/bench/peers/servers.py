"""The servers as commands: ours, vLLM's and llama.cpp's. Knows how each is started, not its protocol."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from engine.upstream import vllm_keeper as keeper
from tests.bench.clients import ServerApi
from tests.bench.engine.load import TEMPERATURE, TOP_P
from tests.bench.peers.install import TITLES, Peer, PeerName, quiet
from tests.bench.servers import MIDSTREAM, Contender, ServerLocation

SAMPLED: dict[str, object] = {"temperature": TEMPERATURE, "top_p": TOP_P}
ENDLESS: dict[str, object] = {"ignore_eos": True}
"""A field of vLLM and llama-server. Ours needs none: no token of these models ends a reply."""
SLOTS = 32
SLOT_TOKENS = 2048
"""Tokens of a slot: room for a long prompt and its reply."""
VLLM_START_S = 300.0
GRACE_S = 10.0


class PeerServer(Contender, frozen=True, kw_only=True):
    """A server of another program, in a keeper that ends all its processes with it."""

    def command(self, place: ServerLocation) -> list[str]:
        """See `Contender`; its arguments are the whole command."""
        return [sys.executable, "-I", str(keeper.__file__), str(GRACE_S), *self.arguments(place)]

    def environment(self, place: ServerLocation) -> dict[str, str]:
        """See `Contender`; it finds nothing of our Python."""
        return quiet() | {"HF_HUB_OFFLINE": "1"} | dict(self.variables(place))


def served(who: PeerName, peers: Mapping[PeerName, Peer]) -> tuple[Contender, dict[str, object]]:
    """Return a server of ours or of an installed peer, and the fields of its requests. Raises KeyError if there is none."""
    if who is PeerName.MIDSTREAM:
        return MIDSTREAM, SAMPLED
    make = {PeerName.VLLM: _vllm, PeerName.LLAMA: _llama}[who]
    return make(str(peers[who].program)), SAMPLED | ENDLESS


def _vllm(python: str) -> Contender:
    def arguments(place: ServerLocation) -> list[str]:
        options = ["--max-model-len", "4096", "--dtype", place.dtype, "--max-num-seqs", "64"]
        serve = [python, "-P", "-m", "vllm.entrypoints.cli.main", "serve", place.model]
        return [*serve, *_listening(place), *options, "--disable-uvicorn-access-log"]

    variables = {
        "PATH": f"{python.rpartition('/')[0]}:{os.environ.get('PATH', '/usr/bin:/bin')}",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    return PeerServer(
        name=PeerName.VLLM, title=TITLES[PeerName.VLLM], api=ServerApi.CHAT, ready="/health", arguments=arguments,
        variables=lambda _place: variables, ready_s=VLLM_START_S,
    )  # fmt: skip


def _llama(program: str) -> Contender:
    def arguments(place: ServerLocation) -> list[str]:
        context = ["--model", place.model, "--ctx-size", str(SLOTS * SLOT_TOKENS)]
        return [program, *_listening(place), *context, "-np", str(SLOTS), "-cb", "-fa", "on"]

    title = TITLES[PeerName.LLAMA]
    return PeerServer(
        name=PeerName.LLAMA, title=title, api=ServerApi.CHAT, ready="/health", arguments=arguments
    )


def _listening(place: ServerLocation) -> list[str]:
    return ["--host", "127.0.0.1", "--port", str(place.port)]
