"""A conversation goes where its keys and values are, unless that engine has too much to do."""

from __future__ import annotations

from collections import Counter

from hypothesis import assume, given
from hypothesis import strategies as st

from engine.served_models import PATIENCE, Load, Router, overloaded

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


@given(load)
def test_no_engine_is_overloaded_beside_its_equal(one: Load) -> None:
    assert not overloaded(one, one)


@given(load, load, st.integers(1, 40))
def test_more_work_at_home_makes_no_one_stay(home: Load, idlest: Load, more: int) -> None:
    assume(overloaded(home, idlest))
    assert overloaded(Load(home.open + more, home.places), idlest)


def test_home_may_have_a_few_more_requests_than_an_idle_engine() -> None:
    assert not overloaded(Load(PATIENCE, 32), Load(0, 32))
    assert overloaded(Load(PATIENCE + 1, 32), Load(0, 32))


def test_home_may_have_twice_the_requests_of_a_busy_engine() -> None:
    assert not overloaded(Load(2 * 10 + PATIENCE, 32), Load(10, 32))
    assert overloaded(Load(2 * 10 + PATIENCE + 1, 32), Load(10, 32))


def test_a_conversation_does_not_wait_at_home_for_a_place_that_another_engine_has_free() -> None:
    assert overloaded(Load(2, 2), Load(1, 2))
    assert not overloaded(Load(3, 2), Load(2, 2))


@given(st.integers(1, 60))
def test_requests_that_come_at_once_are_shared_out_evenly(requests: int) -> None:
    router, open_requests = Router(), dict.fromkeys(range(ENGINES), 0)
    for _ in range(requests):
        chosen = router.route(None, {one: Load(count, 32) for one, count in open_requests.items()})
        open_requests[chosen] += 1
    assert max(open_requests.values()) - min(open_requests.values()) <= 1


def test_conversations_that_come_one_after_the_other_fill_every_engines_memory() -> None:
    router = Router()
    assert [router.route(f"conversation {number}", IDLE) for number in range(6)] == [0, 1, 2, 0, 1, 2]


def test_an_engine_that_died_gets_conversations_again_once_it_serves() -> None:
    router = Router()
    assert [router.route(name, IDLE) for name in "abc"] == [0, 1, 2]
    router.forget(0)
    assert router.route("a", {1: Load(0, 32), 2: Load(0, 32)}) == 1
    assert router.route("d", IDLE) == 0


def test_engines_with_names_are_chosen_alike_by_every_router() -> None:
    chats = [f"conversation {number}" for number in range(40)]
    one, other = Router(names=["a", "b", "c"]), Router(names=["a", "b", "c"])
    homes = [one.route(name, IDLE) for name in chats]
    assert [other.route(name, IDLE) for name in reversed(chats)] == homes[::-1]
    assert set(homes) == {0, 1, 2}


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
