"""The servers as commands: ours, vLLM's and llama.cpp's. Knows how each is started, not its protocol."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import msgspec

from engine.upstream import vllm_keeper as keeper
from tests.bench.engine.contender import TEMPERATURE, TOP_P
from tests.bench.peers.install import quiet
from tests.bench.peers.registry import TITLES, Peer, PeerName
from tests.bench.records import ServerApi
from tests.bench.servers import CONTENDERS, Contender, ServerLocation

SAMPLED = {"temperature": TEMPERATURE, "top_p": TOP_P}
ENDLESS = {"ignore_eos": True}
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
        return quiet(os.environ) | {"HF_HUB_OFFLINE": "1"} | dict(self.variables(place))


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """A server and the fields of its requests beside the messages."""

    server: Contender
    fields: dict[str, object]


def served(who: PeerName, peers: Mapping[PeerName, Peer]) -> Served:
    """Return a server of ours or of an installed peer. Raises KeyError if there is none."""
    if who is PeerName.MIDSTREAM:
        return Served(server=CONTENDERS[0], fields=dict(SAMPLED))
    make = {PeerName.VLLM: _vllm, PeerName.LLAMA: _llama}[who]
    return Served(server=make(peers[who].program), fields={**SAMPLED, **ENDLESS})


def _vllm(python: str) -> Contender:
    def arguments(place: ServerLocation) -> list[str]:
        options = {
            **_listening(place),
            "max-model-len": "4096",
            "dtype": place.dtype,
            "max-num-seqs": "64",
        }
        serve = [python, "-P", "-m", "vllm.entrypoints.cli.main", "serve", place.model]
        return [*serve, *_flags(options), "--disable-uvicorn-access-log"]

    programs = python.rpartition("/")[0]
    return PeerServer(
        name=PeerName.VLLM,
        title=TITLES[PeerName.VLLM],
        api=ServerApi.CHAT,
        ready="/health",
        arguments=arguments,
        variables=lambda _place: {
            "PATH": f"{programs}:{os.environ.get('PATH', '/usr/bin:/bin')}",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        },
        ready_s=VLLM_START_S,
    )


def _llama(program: str) -> Contender:
    def arguments(place: ServerLocation) -> list[str]:
        options = {**_listening(place), "model": place.model, "ctx-size": str(SLOTS * SLOT_TOKENS)}
        return [program, *_flags(options), "-np", str(SLOTS), "-cb", "-fa", "on"]

    return PeerServer(
        name=PeerName.LLAMA,
        title=TITLES[PeerName.LLAMA],
        api=ServerApi.CHAT,
        ready="/health",
        arguments=arguments,
    )


def _listening(place: ServerLocation) -> dict[str, str]:
    return {"host": "127.0.0.1", "port": str(place.port)}


def _flags(options: Mapping[str, str]) -> list[str]:
    return [part for name, value in options.items() for part in (f"--{name}", value)]
