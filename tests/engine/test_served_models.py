"""Several models, each a fleet of engines: which of them serves a conversation, and what all promise together."""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from engine.api import EngineState, EngineStatus
from engine.errors import EngineUnavailable, ModelNotUsable
from engine.machine import EngineOptions
from engine.messages import EngineStatistics, Finished, FinishReason, Message, ModelFacts, Params, Request
from engine.scripted import ScriptedEngine
from engine.served_models import (
    SLACK,
    EngineFleet,
    InvalidModels,
    Load,
    Router,
    ServedModel,
    ServedModels,
    overloaded,
    ranked,
    served_models,
    status_of,
)

HELLO = (Message("user", "hello"),)


@pytest.fixture
async def big() -> ScriptedEngine:
    return ScriptedEngine(by_hand=True, context_tokens=200)


@pytest.fixture
async def small() -> ScriptedEngine:
    return ScriptedEngine(by_hand=True, context_tokens=60)


@pytest.fixture
async def models(big: ScriptedEngine, small: ScriptedEngine) -> ServedModels:
    return ServedModels(
        [
            ServedModel(name="big", engine=big, aliases=("best",), fallbacks=("small", "tiny")),
            ServedModel(name="small", engine=small),
            ServedModel(name="tiny", engine=small),
        ]
    )


async def test_a_request_goes_to_the_model_that_it_names(
    models: ServedModels, big: ScriptedEngine, small: ScriptedEngine
) -> None:
    for name in ("", "big", "best", "small"):
        models.generate(Request(name, HELLO, model=name))
    assert [request.model for request in big.requests] == ["", "big", "best"]
    assert [request.model for request in small.requests] == ["small"]
    with pytest.raises(EngineUnavailable, match="huge"):
        models.generate(Request("huge", HELLO, model="huge"))


async def test_who_has_another_model_to_go_to_does_not_wait(
    models: ServedModels, big: ScriptedEngine
) -> None:
    big.die(revive=False)
    with pytest.raises(EngineUnavailable):
        models.generate(Request("1", HELLO, model="big", fallbacks=("small",)))
    models.generate(Request("2", HELLO, model="big"))
    assert [request.request_id for request in big.requests] == ["2"]


async def test_the_first_model_that_is_loaded_is_enough(models: ServedModels, big: ScriptedEngine) -> None:
    big.die(revive=False)
    assert models.status.state is EngineState.READY
    assert (await models.ready()).context_tokens == 60


async def test_where_no_model_will_be_served_the_defaults_reason_is_told(
    models: ServedModels, big: ScriptedEngine, small: ScriptedEngine
) -> None:
    big._life.not_usable("It has no head.")
    small.fail("It crashed.")
    with pytest.raises(ModelNotUsable, match="no head"):
        await models.ready()


async def test_models_stand_in_in_their_order(models: ServedModels, small: ScriptedEngine) -> None:
    assert models.fallbacks_of("big") == ("small", "tiny")
    assert models.fallbacks_of("big", "small") == ("tiny",)
    assert models.fallbacks_of("big", "tiny") == models.fallbacks_of("small") == ()
    assert [model.name for model in models.serving(("small", "big"))] == ["small", "big"]
    small.die(revive=False)
    assert [model.name for model in models.serving(("small", "big"))] == ["big"]


async def test_an_engine_without_a_name_serves_one_model(big: ScriptedEngine) -> None:
    alone = served_models(big)
    assert served_models(alone) is alone
    assert (alone.default.name, alone.find("big")) == ("", None)
    assert alone.parts == (big,)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"aliases": ("small",)}, "two models have the name 'small'"),
        ({"aliases": ("big",)}, "two models have the name 'big'"),
        ({"fallbacks": ("huge",)}, "is not a served model"),
        ({"fallbacks": ("big",)}, "as a fallback"),
        ({"fallbacks": ("small", "small")}, "as a fallback"),
    ],
)
async def test_names_that_mean_nothing_are_refused(
    big: ScriptedEngine, fields: dict[str, tuple[str, ...]], complaint: str
) -> None:
    with pytest.raises(InvalidModels, match=complaint):
        ServedModels([ServedModel(name="big", engine=big, **fields), ServedModel(name="small", engine=big)])


REQUEST = Request("r", (Message("user", "hello"),))
FACTS = ModelFacts("model", 4096, Params(), "cuda:0", "bfloat16", 32, 1)
OTHER_FACTS = ModelFacts("model", 2048, Params(), "cuda:1", "bfloat16", 16, 1)


@pytest.fixture
async def fleet() -> EngineFleet:
    """Two engines whose processes nobody starts."""
    return EngineFleet([EngineOptions(model="model")] * 2)


def busy(fleet: EngineFleet) -> list[int]:
    return [engine.open_requests for engine in fleet.parts]


def status(state: EngineState, progress: float = 0.0, restarts: int = 0) -> EngineStatus:
    return EngineStatus(state, state.value, progress, None, restarts)


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        (EngineState.READY, EngineState.FAILED, EngineState.READY),
        (EngineState.READY, EngineState.RESTARTING, EngineState.READY),
        (EngineState.LOADING, EngineState.FAILED, EngineState.LOADING),
        (EngineState.LOADING, EngineState.RESTARTING, EngineState.RESTARTING),
        (EngineState.FAILED, EngineState.FAILED, EngineState.FAILED),
        (EngineState.FAILED, EngineState.STOPPED, EngineState.FAILED),
        (EngineState.STOPPED, EngineState.STOPPED, EngineState.STOPPED),
    ],
)
def test_a_fleet_is_as_far_as_its_furthest_engine(
    one: EngineState, other: EngineState, together: EngineState
) -> None:
    assert status_of([status(one), status(other)]).state is together
    assert status_of([status(other), status(one)]).state is together
    reported = status_of([status(EngineState.LOADING, 0.2, 1), status(EngineState.LOADING, 0.7, 2)])
    assert (reported.progress, reported.restarts) == (0.7, 3)


async def test_a_fleet_promises_what_both_engines_can_keep(fleet: EngineFleet) -> None:
    fleet.parts[0]._life.loaded(FACTS)
    assert fleet.facts == FACTS
    fleet.parts[1]._life.loaded(OTHER_FACTS)
    facts = await fleet.ready()
    assert (facts.context_tokens, facts.max_batch, facts.device) == (2048, 48, "cuda:0, cuda:1")


async def test_a_fleet_is_ready_with_its_first_engine(fleet: EngineFleet) -> None:
    waiting = asyncio.create_task(fleet.ready())
    with pytest.raises(EngineUnavailable, match="No engine is ready yet: starting"):
        await fleet.ready(timeout_s=0.001)
    fleet.parts[0]._life.failed("It crashed too often.")
    fleet.parts[1]._life.loaded(FACTS)
    assert await waiting == FACTS


async def test_a_model_that_no_engine_can_serve_is_told(fleet: EngineFleet) -> None:
    fleet.parts[0]._life.not_usable("It has no chat template.")
    fleet.parts[1]._life.not_usable("It has no chat template.")
    with pytest.raises(ModelNotUsable, match="chat template"):
        await fleet.ready()
    with pytest.raises(EngineUnavailable, match="chat template"):
        fleet.generate(REQUEST)
    with pytest.raises(EngineUnavailable, match="chat template"):
        await fleet.count_tokens(REQUEST.messages)


async def test_what_waits_goes_to_the_engine_that_is_ready_first(fleet: EngineFleet) -> None:
    stream = fleet.generate(REQUEST)
    assert busy(fleet) == [1, 0]
    fleet.parts[1]._life.loaded(FACTS)
    assert busy(fleet) == [0, 1]
    stream.cancel()
    assert busy(fleet) == [0, 0]
    end = await anext(stream)
    assert isinstance(end, Finished)
    assert end.reason is FinishReason.CANCELLED


async def test_what_waits_at_an_engine_that_failed_waits_for_another(fleet: EngineFleet) -> None:
    stream = fleet.generate(REQUEST)
    fleet.parts[0]._life.failed("It crashed too often.")
    assert (busy(fleet), stream.closed) == ([0, 1], False)
    with pytest.raises(ValueError, match="still open"):
        fleet.generate(REQUEST)


async def test_a_conversation_is_not_sent_to_a_home_that_forgot_it(fleet: EngineFleet) -> None:
    for engine in fleet.parts:
        engine._life.loaded(FACTS)
    mine = Request("mine", REQUEST.messages, conversation="mine")
    fleet.generate(mine)
    fleet.parts[0]._life.died("It was killed.")
    fleet.parts[0]._life.loaded(FACTS)
    assert fleet._router._homes.get(("", "mine")) is None


async def test_each_owner_has_conversations_of_that_name(fleet: EngineFleet) -> None:
    for engine in fleet.parts:
        engine._life.loaded(FACTS)
    for owner in ("ann", "bob"):
        fleet.generate(Request(owner, REQUEST.messages, cache_salt=owner, conversation="default"))
    assert busy(fleet) == [1, 1]


async def test_the_sum_of_statistics_has_every_fact(fleet: EngineFleet) -> None:
    names = EngineStatistics.__struct_fields__
    fleet.parts[0]._statistics = EngineStatistics(*range(len(names)))
    fleet.parts[1]._statistics = EngineStatistics(*[100] * len(names))
    assert msgspec.structs.astuple(fleet.statistics()) == tuple(100 + fact for fact in range(len(names)))


ENGINES = 3
load = st.builds(Load, open=st.integers(0, 80), places=st.integers(0, 40))
loads = st.dictionaries(st.integers(0, ENGINES - 1), load, min_size=1)
conversation = st.sampled_from("abcdefgh")
IDLE = {engine: Load(0, 32) for engine in range(ENGINES)}


class Reference:
    """Routes as a plain list, the one that was silent for longest first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.homes: list[tuple[str, int]] = []

    def remember(self, name: str, engine: int) -> None:
        self.homes = [*[known for known in self.homes if known[0] != name], (name, engine)][-self.limit :]

    def forget(self, engine: int) -> None:
        self.homes = [known for known in self.homes if known[1] != engine]


@given(
    st.integers(1, 5),
    st.lists(st.tuples(conversation | st.none(), st.integers(0, ENGINES - 1)), max_size=40),
)
def test_routes_are_remembered_up_to_their_limit_and_until_the_engine_dies(
    limit: int, story: list[tuple[str | None, int]]
) -> None:
    """Without a conversation, the story tells of a death."""
    router, reference = Router(limit), Reference(limit)
    for name, engine in story:
        if name is None:
            router.forget(engine)
            reference.forget(engine)
            continue
        homes = dict(reference.homes)
        kept = Counter(homes.values())
        expected = homes.get(name, min(range(ENGINES), key=lambda one: (kept[one], one)))
        assert router.route(name, IDLE) == expected
        reference.remember(name, expected)


@given(st.lists(st.tuples(conversation | st.none(), loads), min_size=1, max_size=30))
def test_a_request_goes_to_an_engine_that_serves_and_waits_for_no_place_that_is_free_elsewhere(
    story: list[tuple[str | None, dict[int, Load]]],
) -> None:
    router = Router(limit=3)
    for name, now in story:
        chosen = router.route(name, now)
        assert chosen in now
        assert not now[chosen].full or all(one.full for one in now.values())


@given(loads, loads)
def test_a_conversation_stays_at_home_unless_home_is_overloaded(
    first: dict[int, Load], later: dict[int, Load]
) -> None:
    router = Router()
    home = router.route("mine", first)
    assume(home in later)
    idlest = router.route(None, later)
    chosen = router.route("mine", later)
    assert chosen == (idlest if overloaded(later[home], later[idlest]) else home)


@given(st.integers(1, 60))
def test_requests_that_come_at_once_are_shared_out_evenly(requests: int) -> None:
    router, open_requests = Router(), dict.fromkeys(range(ENGINES), 0)
    for _ in range(requests):
        chosen = router.route(None, {one: Load(count, 32) for one, count in open_requests.items()})
        open_requests[chosen] += 1
    assert max(open_requests.values()) - min(open_requests.values()) <= 1


def test_a_conversation_goes_around_the_engine_that_its_name_prefers() -> None:
    """Where that one is away, or has far more to do; and it stays where it went."""
    router, names = Router(names=["a", "b", "c"]), ["a", "b", "c"]
    first = router.route("mine", IDLE)
    for now in (
        {number: Load(0, 32) for number in IDLE if number != first},
        {number: Load(20 * (number == first), 32) for number in IDLE},
    ):
        another = Router(names=names)
        second = another.route("mine", now)
        assert second != first
        assert another.route("mine", IDLE) == second


@given(loads)
def test_a_name_prefers_no_engine_that_is_overloaded(now: dict[int, Load]) -> None:
    router = Router(names=["a", "b", "c"])
    idlest = router.route(None, now)
    assert not overloaded(now[router.route("mine", now)], now[idlest])


@pytest.mark.parametrize(
    ("stays", "leaves", "other"),
    [
        (Load(SLACK, 32), Load(SLACK + 1, 32), Load(0, 32)),
        (Load(20 + SLACK, 32), Load(21 + SLACK, 32), Load(10, 32)),
        (Load(1, 2), Load(2, 2), Load(1, 2)),
        (Load(3, 2), Load(5 + SLACK, 2), Load(2, 2)),
    ],
    ids=["the other is idle", "it is busy", "it has a free place", "it is full"],
)
def test_a_conversation_leaves_a_home_with_far_more_to_do(stays: Load, leaves: Load, other: Load) -> None:
    assert not overloaded(stays, other)
    assert overloaded(leaves, other)


KEYS = [f"conversation {number}" for number in range(2000)]


names = st.lists(st.text(max_size=5), unique=True, min_size=1, max_size=6)


def first(key: str, members: list[str]) -> str:
    return members[ranked(key, members)[0]]


@given(st.text(), names)
def test_all_members_are_ranked_however_they_are_listed(key: str, members: list[str]) -> None:
    order = [members[place] for place in ranked(key, members)]
    assert sorted(order) == sorted(members)
    assert [sorted(members)[place] for place in ranked(key, sorted(members))] == order


@given(st.text(), names, st.text(max_size=5))
def test_a_member_that_comes_or_goes_moves_none_but_its_own(key: str, members: list[str], new: str) -> None:
    without = [member for member in members if member != new]
    if without:
        assert first(key, [*without, new]) in {first(key, without), new}


def test_shares_are_even_and_a_fifth_member_takes_a_fifth() -> None:
    four = ["a", "b", "c", "d"]
    homes = [first(key, four) for key in KEYS]
    assert all(0.2 < homes.count(name) / len(KEYS) < 0.3 for name in four)
    moved = sum(home != first(key, [*four, "e"]) for home, key in zip(homes, KEYS, strict=True))
    assert 0.15 < moved / len(KEYS) < 0.25
