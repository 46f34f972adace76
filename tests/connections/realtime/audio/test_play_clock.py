"""What a clock says of sound that was sent."""

from __future__ import annotations

from connections.api.realtime.encoder import LAG_MS, PlaybackClock


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_sound_is_heard_some_time_after_it_was_sent_and_never_before() -> None:
    now = Clock()
    clock = PlaybackClock(now)
    assert (clock.heard_ms("a"), clock.sent_ms("a")) == (0, 0)
    clock.sent("a", 400)
    now.now += LAG_MS / 1000
    assert clock.heard_ms("a") == 0
    now.now += 0.3
    assert 299 <= clock.heard_ms("a") <= 300
    clock.sent("a", 40)
    now.now += 9
    assert clock.heard_ms("a") == clock.sent_ms("a") == 440


def test_sound_that_came_too_late_is_heard_from_then_on() -> None:
    now = Clock()
    clock = PlaybackClock(now)
    clock.sent("a", 100)
    now.now += 5
    clock.sent("a", 100)
    now.now += LAG_MS / 1000 + 0.05
    assert 149 <= clock.heard_ms("a") <= 150


def test_what_was_stopped_is_heard_no_further() -> None:
    now = Clock()
    clock = PlaybackClock(now)
    clock.sent("a", 1000)
    clock.stop("a", 250)
    now.now += 5
    assert clock.heard_ms("a") == 250
    clock.forget("a")
    assert clock.heard_ms("a") == 0
