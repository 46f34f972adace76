"""Each server's command and requests, and the model that llama.cpp reads. Only the last test needs a peer."""

from __future__ import annotations

import json
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from tests.bench.engine.shapes import SPECK, TINY
from tests.bench.engine.worker_pool import WorkerPool, assembled
from tests.bench.peers.measurement import Rounds
from tests.bench.peers.plan import Part, Plan
from tests.bench.peers.prompts import FRAME, content
from tests.bench.peers.registry import PeerName, peers
from tests.bench.peers.servers import SLOT_TOKENS, SLOTS, served
from tests.bench.peers.write_gguf import interleaved, metadata, tensor_name, weights
from tests.bench.records import Job, Measure, ServerApi
from tests.bench.servers import ServerLocation
from tests.bench.sse_client import of_openai
from tests.bench.workload import Level

PLACE = ServerLocation(port=1234, folder="/none", model="/the/model", device="cpu", dtype="bfloat16")
PEERS = {peer.who: peer for peer in peers()}
SHORT = Plan(levels=(Level(2, 2),), prompt_tokens=40, new_tokens=4, rounds=1, held=False)


@pytest.fixture(scope="module")
def crew() -> Iterator[WorkerPool]:
    with assembled() as made:
        yield made


@pytest.mark.parametrize("who", [PeerName.VLLM, PeerName.LLAMA])
def test_a_peer_listens_on_loopback_alone_and_is_kept(who: PeerName) -> None:
    server = served(who, PEERS).server
    command = server.command(PLACE)
    assert "vllm_keeper.py" in command[2]
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert command[command.index("--port") + 1] == "1234"
    assert "/the/model" in command
    assert "PYTHONPATH" not in server.environment(PLACE)


def test_peers_are_started_as_the_documentation_says() -> None:
    vllm = served(PeerName.VLLM, PEERS).server
    assert {"--max-num-seqs", "64", "--max-model-len", "4096", "bfloat16"} <= set(vllm.command(PLACE))
    assert vllm.environment(PLACE)["VLLM_CPU_KVCACHE_SPACE"] == "2"
    llama = " ".join(served(PeerName.LLAMA, PEERS).server.command(PLACE))
    assert llama.endswith(f"--ctx-size {SLOTS * SLOT_TOKENS} -np 32 -cb -fa on")


def test_all_are_asked_the_same_but_that_ours_needs_no_word_about_ends() -> None:
    ours, *theirs = [served(who, PEERS).fields for who in (PeerName.MIDSTREAM, PeerName.VLLM, PeerName.LLAMA)]
    assert ours == {"temperature": 0.8, "top_p": 0.95}
    assert all(fields == ours | {"ignore_eos": True} for fields in theirs)


def test_fields_of_a_job_outrank_the_greedy_ones() -> None:
    reported = of_openai("m", {"temperature": 0.8})(16)
    assert (reported["temperature"], reported["max_completion_tokens"], reported["model"]) == (0.8, 16, "m")
    assert of_openai("m")(16)["temperature"] == 0
    made = Job(
        measure=Measure.LOAD, api=ServerApi.CHAT, url="", model="", pid=1, clients=1, replies=1,
        max_new_tokens=1, cancel_after_texts=0, limit_s=1,
    )  # fmt: skip
    assert (made.prompts, made.more) == ((), {})


def test_a_prompt_has_exactly_so_many_tokens_and_is_like_no_other() -> None:
    made = {content(53, seed, len) for seed in range(40)}
    assert len(made) == 40
    assert {len(FRAME.format(one)) for one in made} == {53}
    with pytest.raises(ValueError, match="no prompt of 53 tokens"):
        content(53, 0, lambda text: len(text) // 2)
    with pytest.raises(ValueError, match="no prompt of 3 tokens"):
        content(3, 0, len)


def test_a_file_for_llama_cpp_says_what_the_folder_says(crew: WorkerPool) -> None:
    folder = crew.model(SPECK)
    config, tokenizer = (
        json.loads((folder / name).read_text()) for name in ("config.json", "tokenizer.json")
    )
    facts = metadata(config, tokenizer, "the template")
    assert facts["llama.block_count"] == SPECK.layers
    assert facts["llama.context_length"] == SPECK.window
    assert facts["llama.attention.head_count_kv"] == SPECK.heads
    assert facts["llama.rope.dimension_count"] == SPECK.hidden // SPECK.heads
    assert facts["tokenizer.chat_template"] == "the template"
    tokens, merges = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.merges"]
    assert isinstance(tokens, list)
    assert isinstance(merges, list)
    assert len(tokens) == SPECK.vocabulary
    assert (tokens[0], merges[0]) == ("!", "! !")


def test_every_weight_has_a_name_there_and_is_read_as_it_lies(crew: WorkerPool) -> None:
    found = dict(weights(crew.model(SPECK) / "model.safetensors"))
    names = {tensor_name(name) for name in found}
    assert {"token_embd.weight", "output.weight", "blk.1.ffn_down.weight", "blk.0.attn_norm.weight"} <= names
    assert len(names) == len(found) == 9 * SPECK.layers + 3
    assert set(found["model.norm.weight"].tolist()) == {0x3F80}  # all ones, as bfloat16
    with pytest.raises(KeyError):
        tensor_name("model.vision.weight")


def test_rows_that_are_turned_together_become_neighbours() -> None:
    rows = np.arange(8).reshape(8, 1)
    assert interleaved(rows, 2).ravel().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_a_peer_that_does_not_start_is_told_and_not_tried_again(crew: WorkerPool) -> None:
    broken = msgspec.structs.replace(PEERS[PeerName.VLLM], program="/bin/false")
    rounds = Rounds(msgspec.structs.replace(SHORT, rounds=2), {PeerName.VLLM: broken}, crew, print)
    rounds.measure([Part(who=PeerName.VLLM, shape=SPECK)])
    assert rounds.runs == []
    (failure,) = rounds.failures
    assert failure.what == "vLLM, speck"
    assert "ended at its start" in failure.why


@pytest.mark.peers
@pytest.mark.timeout(400)  # vLLM starts in most of a minute, on a busy machine in three
@pytest.mark.parametrize("who", [PeerName.LLAMA, PeerName.OPENVINO, PeerName.VLLM])
def test_a_peer_that_is_installed_answers(who: PeerName, crew: WorkerPool) -> None:
    if not PEERS[who].installed:
        pytest.skip(f"NOT TESTED: `make bench-peers` has not installed {who}")
    rounds = Rounds(SHORT, PEERS, crew, print)
    rounds.measure([Part(who=who, shape=TINY, engine=who is PeerName.OPENVINO)])
    assert rounds.failures == []
    assert all(run.tokens_per_s > 0 for run in rounds.runs)
    assert {run.tokens_per_reply for run in rounds.runs} <= {4, None}
