"""A conversation goes where its keys and values are, unless that engine has too much to do."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from engine.served_models import PATIENCE, Load, Router, overloaded, ranked

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


@given(loads, loads)
def test_a_conversation_that_moved_stays_where_it_moved_to(
    first: dict[int, Load], later: dict[int, Load]
) -> None:
    router = Router()
    router.route("mine", first)
    moved = router.route("mine", later)
    assert router.route("mine", IDLE) == moved


@given(load, load, st.integers(1, 40))
def test_more_work_at_home_makes_no_one_stay(home: Load, idlest: Load, more: int) -> None:
    assume(overloaded(home, idlest))
    assert overloaded(Load(home.open + more, home.places), idlest)


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
        (Load(PATIENCE, 32), Load(PATIENCE + 1, 32), Load(0, 32)),
        (Load(20 + PATIENCE, 32), Load(21 + PATIENCE, 32), Load(10, 32)),
        (Load(1, 2), Load(2, 2), Load(1, 2)),
        (Load(3, 2), Load(5 + PATIENCE, 2), Load(2, 2)),
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


def test_every_process_ranks_alike() -> None:
    assert [ranked(key, ["one", "two", "three"]) for key in ("a", "b", "c")] == [
        [0, 2, 1],
        [2, 0, 1],
        [0, 1, 2],
    ]
