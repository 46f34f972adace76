"""The file that llama.cpp reads, and each peer that is installed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.bench.engine.shapes import SPECK, TINY
from tests.bench.engine.worker import drawn
from tests.bench.peers.__main__ import FRAME, NAMES, Kind, Part, Plan, Run, content, findings, measured
from tests.bench.peers.servers import PeerName, is_installed
from tests.bench.peers.write_gguf import interleaved, metadata, tensor_name, weights

SHORT = Plan(levels={2: 2}, prompt_tokens=40, new_tokens=4, rounds=2)


def test_a_file_for_llama_cpp_has_the_folders_model(tmp_path: Path) -> None:
    folder = drawn(SPECK, tmp_path)
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


def test_a_peer_that_does_not_start_is_reported_and_not_tried_again(tmp_path: Path) -> None:
    report = measured(SHORT, [Part(PeerName.VLLM, SPECK)], tmp_path, {PeerName.VLLM: tmp_path / "nothing"})
    assert (report.details["runs"], [one.what for one in report.failures]) == ([], ["vLLM, speck"])


def test_a_peers_ratio_is_the_median_of_the_rounds_that_both_have() -> None:
    rates = {PeerName.MIDSTREAM: (800, 850, 1000, 1), PeerName.VLLM: (400, 500, 1000)}
    runs = [
        Run(who=who, model="small", kind=Kind.CHAT, clients=8, round=place, figures={"tokens/s, all clients": rate})
        for who, some in rates.items()
        for place, rate in enumerate(some)
    ]  # fmt: skip
    (found,) = findings(runs)
    assert (found.value, found.met, found.note) == (1.7, True, "3 rounds")


def test_a_prompt_has_exactly_so_many_tokens_and_is_like_no_other() -> None:
    made = {content(53, seed, len) for seed in range(40)}
    assert (len(made), {len(FRAME.format(one)) for one in made}) == (40, {53})


@pytest.mark.peers
@pytest.mark.timeout(400)  # vLLM starts in most of a minute, on a busy machine in three
@pytest.mark.parametrize("who", NAMES)
def test_a_peer_that_is_installed_answers(who: PeerName, tmp_path: Path) -> None:
    if not is_installed(who):
        pytest.skip(f"NOT TESTED: `make bench-peers` has not installed {who}")
    report = measured(SHORT, [Part(who, TINY)], tmp_path)
    assert report.failures == []
    assert all(run.figures["tokens/s, all clients"] > 0 for run in report.details["runs"])
