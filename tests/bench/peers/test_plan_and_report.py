"""The comparisons and their table, from made-up runs."""

from __future__ import annotations

import msgspec
import pytest

from tests.bench.engine.report import Failure
from tests.bench.engine.shapes import SMALL, TINY
from tests.bench.machine import this_machine
from tests.bench.peers.plan import FULL, MARKS, PARTS, QUICK, Kind, Part, Plan, long_levels, parts
from tests.bench.peers.registry import PeerName
from tests.bench.peers.report import LeftOut, PeersReport, Run, decode, encode, findings, table


def run(who: PeerName, number: int, rate: float, **more: object) -> Run:
    reported = {"model": "small", "kind": Kind.CHAT, "clients": 8, "tokens_per_reply": 128.0} | more
    return Run(who=who, round=number, tokens_per_s=rate, **reported)  # type: ignore[arg-type]


RUNS = (
    run(PeerName.MIDSTREAM, 0, 800),
    run(PeerName.VLLM, 0, 400),
    run(PeerName.VLLM, 1, 500),
    run(PeerName.MIDSTREAM, 1, 850),
    run(PeerName.MIDSTREAM, 2, 1000),
    run(PeerName.VLLM, 2, 1000, tokens_per_reply=100.0),
    run(PeerName.MIDSTREAM, 0, 90, kind=Kind.LONG, clients=1, first_token_ms=900.0),
    run(PeerName.LLAMA, 0, 100, kind=Kind.LONG, clients=1, first_token_ms=1000.0),
)


def report(plan: Plan = FULL) -> PeersReport:
    return PeersReport(
        date="2026-01-02",
        machine=this_machine(("transformers",)),
        dtype="bfloat16",
        plan=plan,
        versions={"vllm": "0.32.0"},
        findings=tuple(findings(RUNS, plan)),
        runs=RUNS,
        failures=(Failure("llama-server, tiny", "it ended"),),
        left_out=(LeftOut(PeerName.OPENVINO, "there is no network"),),
        cuts=("1 of 4 rounds, for want of time",),
    )


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    (rate, _) = findings(RUNS, FULL)
    assert rate.value == 1.7
    assert rate.readings == {"Midstream": 850, "vLLM": 500}
    assert rate.met is True
    assert rate.note == "3 rounds; shortest reply 100 tokens"


def test_a_first_token_may_take_at_most_its_mark() -> None:
    (_, first) = findings(RUNS, FULL)
    assert first.value == pytest.approx(0.9)
    assert first.readings == {"Midstream": 900, "llama-server": 1000}
    assert first.met is False


def test_rounds_that_only_one_of_both_has_count_for_no_ratio() -> None:
    assert findings([*RUNS[:2], run(PeerName.MIDSTREAM, 3, 1)], FULL)[0].value == 2.0
    assert findings([RUNS[1]], FULL)[0].value is None
    assert findings([RUNS[0]], FULL) == []


def test_a_quick_round_compares_what_it_measured_and_holds_nothing_against_it() -> None:
    found = findings(RUNS, QUICK)
    assert [one.readings for one in found] == [
        {"Midstream": 850, "vLLM": 500},
        {"Midstream": 90, "llama-server": 100},
    ]
    assert all(one.met is None for one in found)


def test_the_table_tells_marks_failures_and_who_was_left_out() -> None:
    lines = table(report()).splitlines()
    assert lines[1].startswith("small, chat completions, 8 clients: tokens/s against vLLM")
    assert lines[1].endswith("met")
    assert lines[2].endswith("NOT MET")
    assert lines[3:] == [
        "FAILED: llama-server, tiny: it ended",
        "Left out: 1 of 4 rounds, for want of time",
        "Left out: OpenVINO GenAI: there is no network",
        "Marks: 1 met, 1 not met.",
    ]
    assert "Marks" not in table(report(QUICK))


def test_a_report_survives_its_file() -> None:
    assert decode(encode(report())) == report()


def test_every_mark_is_about_something_that_is_measured() -> None:
    measured = {
        (part.who, part.shape.name, kind, level.clients)
        for part in PARTS
        for kind, levels in (
            (Kind.ENGINE if part.engine else Kind.CHAT, FULL.levels),
            (Kind.LONG, () if part.engine else long_levels(part, FULL)),
        )
        for level in levels
    }
    for mark in MARKS:
        for who in (PeerName.MIDSTREAM, mark.peer):
            assert (who, mark.model, mark.kind, mark.clients) in measured


def test_ours_is_measured_where_a_peer_stands_beside_it_and_nowhere_else() -> None:
    assert parts(frozenset({PeerName.VLLM})) == (
        Part(who=PeerName.MIDSTREAM, shape=SMALL),
        Part(who=PeerName.VLLM, shape=SMALL),
    )
    assert parts(frozenset(PeerName)) == PARTS
    assert {part.shape for part in parts(frozenset({PeerName.LLAMA}))} == {SMALL, TINY}
    assert all(part.engine for part in parts(frozenset({PeerName.OPENVINO})))


def test_vllm_is_never_asked_several_long_prompts_at_once() -> None:
    several = [part for part in PARTS if any(level.clients > 1 for level in long_levels(part, FULL))]
    assert {part.who for part in several if not part.engine} == {PeerName.MIDSTREAM, PeerName.LLAMA}
    assert msgspec.json.decode(msgspec.json.encode(FULL), type=Plan) == FULL
