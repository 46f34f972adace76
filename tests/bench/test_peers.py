"""Servers in turns, the file that llama.cpp reads, and each peer that is installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.bench.__main__ import beside
from tests.bench.engine.shapes import SPECK, TINY
from tests.bench.engine.worker import drawn, in_gguf
from tests.bench.load_generator import TOKENS_PER_S, Figures
from tests.bench.peers import ENTRIES, FRAME, PEERS, Plan, content, entries_of, findings, measured
from tests.bench.report import MeasurementFailed, Report
from tests.bench.servers import MIDSTREAM, SERVE, VLLM, Entry, Run, in_turns, vllm

SHORT = Plan(levels={2: 2}, prompt_tokens=40, new_tokens=4, rounds=2)


def runs_of(rates: dict[str, tuple[int, ...]], load: str = "8 at once") -> list[Run]:
    return [
        Run(server=name, model="small", load=load, round=place, figures={TOKENS_PER_S: rate})
        for name, some in rates.items()
        for place, rate in enumerate(some)
    ]


def test_a_file_for_llama_cpp_has_the_models_weights_in_bfloat16(tmp_path: Path) -> None:
    folder = drawn(SPECK, tmp_path)
    file = gguf.GGUFReader(in_gguf(folder))
    found = {one.name: one for one in file.tensors}
    assert len(found) == 9 * SPECK.layers + 3
    weights = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    for name, ours in (
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output.weight", "lm_head.weight"),
    ):
        assert found[name].tensor_type is gguf.GGMLQuantizationType.BF16
        stored = gguf.quants.dequantize(found[name].data, gguf.GGMLQuantizationType.BF16)
        assert (stored == weights[ours].numpy()).all()


def test_servers_take_turns_and_one_that_failed_gets_no_other() -> None:
    report, order = Report(), []

    def measure(entry: Entry, number: int) -> Iterator[tuple[str, Figures]]:
        order.append((number, entry.server.name))
        yield "a load", {TOKENS_PER_S: 1.0}
        if entry.server is VLLM:
            raise MeasurementFailed("it ended")

    runs = in_turns([Entry(one, "small") for one in (MIDSTREAM, VLLM, SERVE)], 2, report, measure)
    assert order == [(0, "midstream"), (0, "vllm"), (0, "serve"), (1, "serve"), (1, "midstream")]
    assert [failure.what for failure in report.failures] == ["vLLM, small"]
    assert len(runs) == 5


def test_a_server_that_does_not_start_is_reported(tmp_path: Path) -> None:
    report = measured(SHORT, [Entry(vllm(tmp_path / "nothing"), "speck")], tmp_path)
    assert (report.details["runs"], [one.what for one in report.failures]) == ([], ["vLLM, speck"])


def test_figures_of_servers_are_medians_beside_ours() -> None:
    (found,) = beside(runs_of({"midstream": (1, 5, 3), "serve": (2, 2, 8)}))
    assert (found.value, found.readings) == (3, {"Midstream": 3, "transformers serve": 2})


def test_a_peers_ratio_is_the_median_of_the_rounds_that_both_have() -> None:
    (found,) = findings(runs_of({"midstream": (800, 850, 1000, 1), "vllm": (400, 500, 1000)}))
    assert (found.value, found.met, found.note) == (1.7, True, "3 rounds")


def test_midstream_is_measured_with_the_models_of_its_peers_alone() -> None:
    assert [one.title for one in entries_of(["vllm"])] == ["Midstream, small", "vLLM, small"]
    assert entries_of(list(PEERS)) == list(ENTRIES)


def test_a_prompt_has_exactly_so_many_tokens_and_is_like_no_other() -> None:
    made = {content(53, seed, len) for seed in range(40)}
    assert (len(made), {len(FRAME.format(one)) for one in made}) == (40, {53})


@pytest.mark.peers
@pytest.mark.timeout(400)  # vLLM starts in most of a minute, on a busy machine in three
@pytest.mark.parametrize("name", PEERS)
def test_a_peer_that_is_installed_answers(name: str, tmp_path: Path) -> None:
    if PEERS[name].missing():
        pytest.skip(f"NOT TESTED: `make bench-peers` has not installed {name}")
    report = measured(SHORT, [Entry(PEERS[name], TINY.name)], tmp_path)
    assert report.failures == []
    assert all(run.figures[TOKENS_PER_S] > 0 for run in report.details["runs"])
