"""What of a reply was heard, by the clock of the sound."""

from __future__ import annotations

import itertools
from array import array

import pytest

from midstream.terminal.voice.player import DUCKED, DUCKED_S, Player

RATE = 1000  # a sample is a millisecond


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def player(clock: Clock) -> Player:
    player = Player(RATE, clock)
    player.begin(0)
    return player


def sound(samples: int) -> bytes:
    return array("h", [1000] * samples).tobytes()


def test_sound_counts_as_played_when_it_is_heard_and_not_when_it_is_handed_over(
    player: Player, clock: Clock
) -> None:
    player.take(sound(100), last=True)
    assert player.fill(80, delay_s=0.03) == sound(40)
    assert player.played_ms == 0
    clock.now += 0.03
    assert player.played_ms == 0
    clock.now += 0.02
    assert player.played_ms == pytest.approx(20)
    clock.now += 1
    assert player.played_ms == pytest.approx(40)
    assert not player.is_over
    assert player.fill(200, delay_s=0.03) == sound(60) + bytes(80)
    clock.now += 1
    assert player.played_ms == pytest.approx(100)
    assert player.is_over


def test_a_gap_in_the_sound_is_silence_and_counts_for_nothing(player: Player, clock: Clock) -> None:
    player.take(sound(10), last=False)
    player.fill(20, delay_s=0)
    clock.now += 1
    assert player.fill(20, delay_s=0) == bytes(20)
    assert player.played_ms == pytest.approx(10)
    assert not player.is_over  # more may come
    player.take(b"", last=True)
    assert player.is_over


def test_a_stop_is_silence_at_once_and_what_the_device_has_is_heard(player: Player) -> None:
    player.take(sound(100), last=True)
    player.fill(80, delay_s=0.5)
    assert player.stop() == pytest.approx(40)
    player.take(sound(100), last=True)
    assert player.fill(80, delay_s=0.5) == bytes(80)
    assert player.played_ms == pytest.approx(40)


def test_a_reply_goes_on_where_it_was_left(player: Player, clock: Clock) -> None:
    player.begin(300)
    assert player.played_ms == 300
    player.take(sound(10), last=True)
    player.fill(20, delay_s=0)
    clock.now += 1
    assert player.played_ms == pytest.approx(310)


def test_a_reply_is_soft_while_somebody_speaks_over_it_and_does_not_click(player: Player) -> None:
    player.take(sound(300), last=True)
    player.duck(ducked=True)
    fading = array("h", player.fill(200, delay_s=0))
    assert all(0 <= before - after <= 10 for before, after in itertools.pairwise(fading))
    assert array("h", player.fill(200, delay_s=0))[50] == 1000 * DUCKED
    player.duck(ducked=False)
    player.fill(100, delay_s=0)
    assert array("h", player.fill(100, delay_s=0))[0] == 1000


def test_a_noise_that_goes_on_does_not_keep_the_reply_soft(player: Player, clock: Clock) -> None:
    player.take(sound(300), last=True)
    player.duck(ducked=True)
    player.fill(100, delay_s=0)
    clock.now += DUCKED_S
    player.fill(100, delay_s=0)
    assert array("h", player.fill(100, delay_s=0))[0] == 1000
