"""A load is driven to its end, whichever contender serves it. This one makes a token for each request at every wait."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tests.bench.engine.contender import GenerationRequest, TokenUpdate, prompt
from tests.bench.engine.load import BEGUN, observe
from tests.bench.engine.records import Load, Observed

LOAD = Load(at_once=3, prompt_tokens=5, new_tokens=4, cut_s=100)


class InStep:
    """A second passes with every wait."""

    def __init__(self) -> None:
        self.now = 0.0
        self.running: dict[str, int] = {}
        self.requests: list[GenerationRequest] = []

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        self.requests += requests
        self.running |= {one.name: one.new_tokens for one in requests}

    def wait(self) -> Sequence[TokenUpdate]:
        self.now += 1
        self.running = {name: left - 1 for name, left in self.running.items() if left > 0}
        return [TokenUpdate(name, 1, ended=left == 0) for name, left in self.running.items()]

    def cancel(self, name: str) -> None:
        self.running[name] = 1

    def close(self) -> None:
        self.running.clear()


def drive(load: Load) -> tuple[InStep, Observed]:
    contender = InStep()
    observed = observe(contender, load, vocabulary=50, clock=lambda: contender.now, turn=1)
    return contender, observed


def test_every_token_of_every_stream_has_its_moment() -> None:
    contender, observed = drive(LOAD)
    assert [stream.arrivals for stream in observed.streams] == [(1, 2, 3, 4)] * 3
    assert not observed.cut
    assert {len(one.prompt) for one in contender.requests} == {5}
    assert len({tuple(one.prompt) for one in contender.requests}) == 3


def test_what_takes_too_long_is_cut_and_what_came_until_then_counts() -> None:
    _, observed = drive(Load(at_once=2, prompt_tokens=5, new_tokens=1000, cut_s=10))
    assert observed.cut
    assert [len(stream.arrivals) for stream in observed.streams] == [11, 11]


def test_an_intruder_comes_once_all_have_begun_and_its_first_token_ends_the_load() -> None:
    contender, observed = drive(
        Load(at_once=2, prompt_tokens=5, new_tokens=100, cut_s=100, intruder_tokens=30)
    )
    assert len(contender.requests[-1].prompt) == 30
    assert observed.intruder is not None
    assert (observed.intruder.sent, observed.intruder.arrivals) == (BEGUN, (BEGUN + 1,))
    assert len(observed.streams) == 2
    assert not observed.cut


def test_prompts_are_the_same_each_time_and_differ_by_their_seed() -> None:
    assert prompt(20, 50, (1, 2)) == prompt(20, 50, (1, 2)) != prompt(20, 50, (1, 3))
    assert all(0 <= token < 50 for token in prompt(200, 50, "any"))


def test_requests_of_mixed_lengths_arrive_as_others_end() -> None:
    contender, observed = drive(msgspec.structs.replace(LOAD, longest_tokens=50, arriving=4))
    lengths = [len(one.prompt) for one in contender.requests]
    assert len(lengths) == len(observed.streams) == 7
    assert len(set(lengths)) > 2
    assert all(5 <= length <= 50 for length in lengths)
    assert [stream.sent for stream in observed.streams][:4] == [0, 0, 0, 4]
