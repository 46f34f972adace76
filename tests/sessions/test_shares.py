"""Nobody's share leaves others none."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessions.errors import Draining, Overloaded
from sessions.limits.bounds import LARGE_BODIES, MAX_ACCEPTING, MAX_SLOTS, SLOT_CHARS
from sessions.limits.shares import ADDRESS, AGAIN_MS, Admission, Admitted, FairShare, Subject

ANN, BOB = Subject("ann", "here"), Subject("bob", "there")


def filled(shares: FairShare, *subjects: Subject) -> list[int]:
    """How many each takes, where all take one in turn for as long as any may."""
    counts = [0] * len(subjects)
    while any(shares.has_capacity_for(one) for one in subjects):
        for place, one in enumerate(subjects):
            if shares.has_capacity_for(one):
                shares.take(one)
                counts[place] += 1
    return counts


@pytest.mark.parametrize(
    ("owners", "group", "most"), [(1, "here", 250), (1000, "key", 750), (1000, f"{ADDRESS}192.0.2.1", 333)]
)
def test_owners_keys_and_addresses_have_shares_under_any_number_of_names(
    owners: int, group: str, most: int
) -> None:
    """Whoever comes by an address alone has as many names as it likes."""
    shares = FairShare(1000)
    assert sum(filled(shares, *(Subject(f"name{number}", group) for number in range(owners)))) == most
    assert shares.has_capacity_for(BOB)


def test_twenty_addresses_of_many_names_leave_others_room_for_more_than_one() -> None:
    """They hold what they have for long: whoever comes has a dozen places all the same, and so have three more."""
    shares = FairShare(1024)
    filled(shares, *(Subject(f"name{number}", f"{ADDRESS}{number % 20}") for number in range(4000)))
    others = [Subject(f"other{number}", f"{ADDRESS}other{number}") for number in range(4)]
    assert min(filled(shares, *others)) >= 12


def test_the_fuller_it_is_the_smaller_are_the_shares() -> None:
    shares = FairShare(1000)
    counts = filled(shares, *(Subject(f"name{number}", f"group{number}") for number in range(20)))
    assert max(counts) - min(counts) <= 1
    assert 40 <= min(counts) <= 50
    assert shares.has_capacity_for(BOB)


def test_the_last_place_is_for_who_has_none() -> None:
    shares = FairShare(2)
    shares.take(ANN)
    assert not shares.has_capacity_for(ANN)
    assert shares.has_capacity_for(BOB)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["", "g"]), st.booleans()), max_size=60))
def test_what_is_given_back_is_as_if_never_taken(steps: list[tuple[str, str, bool]]) -> None:
    shares, held = FairShare(12), list[Subject]()
    for owner, group, takes in steps:
        subject = Subject(owner, group)
        if takes and shares.has_capacity_for(subject):
            shares.take(subject)
            held.append(subject)
        elif not takes and held:
            shares.give_back(held.pop())
        assert len(shares) == len(held) <= 12
    for subject in held:
        shares.give_back(subject)
    assert (len(shares), shares._owners, shares._groups) == (0, {}, {})


def admit_all(admission: Admission, subject: Subject, *, waits: bool = False) -> list[Admitted]:
    """As many turns of one as are let in, each on its way no longer."""
    turns: list[Admitted] = []
    while True:
        try:
            turns.append(admission.enter(subject, waits=waits))
        except Overloaded:
            return turns
        turns[-1].end_acceptance()


def test_turns_that_wait_take_no_place_of_those_that_run() -> None:
    admission = Admission(at_most=1024)
    waiting = admit_all(admission, ANN, waits=True)
    assert (len(waiting), len(admission.queued), len(admission)) == (256, 256, 256)
    with pytest.raises(Overloaded) as refused:
        admission.enter(ANN, waits=True)
    assert refused.value.retry_after_ms == AGAIN_MS
    admission.enter(BOB, waits=True).leave()
    admission.enter(ANN)
    waiting[0].begin()
    assert (len(admission.queued), len(admission)) == (255, 257)
    for turn in waiting:
        turn.leave()
        turn.leave()
    assert (len(admission.queued), len(admission)) == (0, 1)
    assert len(admit_all(admission, ANN)) == 255


def test_only_so_many_messages_are_on_their_way_in() -> None:
    """Beyond, all would be slower than their senders wait, and none would be taken in."""
    admission = Admission(at_most=100_000)
    turns = [admission.enter(Subject(f"name{number}")) for number in range(MAX_ACCEPTING)]
    with pytest.raises(Overloaded):
        admission.enter(BOB)
    turns[0].end_acceptance()
    admission.enter(BOB)


def test_long_messages_are_fewer_on_their_way_in() -> None:
    """Each is there some times until it is accepted: a client's long ones come to no more memory than its short ones."""
    admission, chars = Admission(at_most=2 * MAX_ACCEPTING), 8 * SLOT_CHARS
    alone = Subject("alone")
    turns = [admission.enter(alone, chars=chars) for _ in range(MAX_ACCEPTING // 4 // 9)]
    with pytest.raises(Overloaded):
        admission.enter(alone, chars=chars)
    admission.enter(Subject("another"), chars=chars).leave()
    for turn in turns:
        turn.end_acceptance()
    assert admission.enter(alone, chars=chars)


@settings(max_examples=8)
@given(st.randoms(use_true_random=False))
def test_while_long_messages_of_many_come_and_go_there_are_places_for_short_ones(chance: Random) -> None:
    """Each takes several places: one more that is let in must not take the last."""
    admission, turns = Admission(at_most=2 * MAX_ACCEPTING), list[Admitted]()
    for _ in range(150):
        address, name = chance.randrange(20), chance.randrange(4)
        with suppress(Overloaded):
            sender = Subject(f"{address}-{name}", f"{ADDRESS}{address}")
            turns.append(admission.enter(sender, chars=8 * SLOT_CHARS))
        if len(turns) > 24 and chance.random() < 0.5:
            turns.pop(chance.randrange(len(turns))).leave()
        admission.enter(BOB).leave()


def test_a_message_of_megabytes_leaves_places_for_others() -> None:
    """So do as many as there are long bodies at once."""
    admission = Admission(at_most=2 * MAX_ACCEPTING)
    for number in range(LARGE_BODIES):
        admission.enter(Subject(f"long-{number}"), chars=MAX_ACCEPTING * SLOT_CHARS)
    assert LARGE_BODIES * MAX_SLOTS < MAX_ACCEPTING
    admission.enter(BOB)


def test_a_server_that_stops_takes_none() -> None:
    admission = Admission(at_most=9)
    admission.draining = True
    with pytest.raises(Draining):
        admission.enter(ANN)
