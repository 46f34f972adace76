"""The file that llama.cpp reads, and each peer that is installed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.bench.engine.shapes import SPECK, TINY
from tests.bench.engine.worker import WorkerPool, assembled
from tests.bench.peers.__main__ import Part, Plan, Rounds
from tests.bench.peers.install import PeerName, peers
from tests.bench.peers.write_gguf import interleaved, metadata, tensor_name, weights

PEERS = {peer.who: peer for peer in peers()}
SHORT = Plan(levels={2: 2}, prompt_tokens=40, new_tokens=4, rounds=2, held=False)


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with assembled() as made:
        yield made


def test_a_file_for_llama_cpp_has_the_folders_model(pool: WorkerPool) -> None:
    folder = pool.model(SPECK)
    config, tokenizer = (
        json.loads((folder / name).read_text()) for name in ("config.json", "tokenizer.json")
    )
    facts = metadata(config, tokenizer, "the template")
    assert facts["llama.block_count"] == SPECK.layers
    assert facts["llama.rope.dimension_count"] == SPECK.hidden // SPECK.heads
    found = dict(weights(folder / "model.safetensors"))
    names = {tensor_name(name) for name in found}
    assert {"token_embd.weight", "output.weight", "blk.1.ffn_down.weight", "blk.0.attn_norm.weight"} <= names
    assert len(names) == len(found) == 9 * SPECK.layers + 3
    rows = np.arange(8).reshape(8, 1)
    assert interleaved(rows, 2).ravel().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_a_peer_that_does_not_start_is_reported_and_not_tried_again(pool: WorkerPool) -> None:
    broken = msgspec.structs.replace(PEERS[PeerName.VLLM], program=Path("/bin/false"))
    rounds = Rounds(SHORT, {PeerName.VLLM: broken}, pool)
    rounds.measure([Part(PeerName.VLLM, SPECK)])
    assert (rounds.runs, [failure.what for failure in rounds.report.failures]) == ([], ["vLLM, speck"])


@pytest.mark.peers
@pytest.mark.timeout(400)  # vLLM starts in most of a minute, on a busy machine in three
@pytest.mark.parametrize("who", [PeerName.LLAMA, PeerName.OPENVINO, PeerName.VLLM])
def test_a_peer_that_is_installed_answers(who: PeerName, pool: WorkerPool) -> None:
    if not PEERS[who].installed:
        pytest.skip(f"NOT TESTED: `make bench-peers` has not installed {who}")
    rounds = Rounds(SHORT, PEERS, pool)
    rounds.measure([Part(who, TINY, engine=who is PeerName.OPENVINO)])
    assert rounds.report.failures == []
    assert all(run.figures["tokens/s, all clients"] > 0 for run in rounds.runs)
