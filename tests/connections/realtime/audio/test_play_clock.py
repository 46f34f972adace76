"""How much of a reply's sound was heard, by the clock alone, and by what its client says of it."""

from __future__ import annotations

from connections.api.realtime.encoder import LAG_MS, SpokenReplies
from connections.protocol.audio import AudioReply, Sound
from tests.connections.factory import done

LAG_S = LAG_MS / 1000


class Replies(SpokenReplies):
    """One reply, "t", whose sound has a sample for each eighth of a millisecond."""

    def __init__(self) -> None:
        self.now = 100.0
        super().__init__(lambda: self.now)
        self.begin(
            AudioReply(conversation_id="c", turn_id="t", stream=1, format="pcm16", rate=8000, from_ms=0)
        )

    def send(self, ms: int) -> None:
        self.sent(Sound(1, 1, bytes(16 * ms), 0, "c", "t"))

    def heard_after(self, seconds: float) -> int:
        self.now += seconds
        return self.heard_ms("t")


def test_sound_is_heard_some_time_after_it_was_sent_and_never_before() -> None:
    replies = Replies()
    assert replies.heard_after(0) == replies.heard_ms("unknown") == 0
    replies.send(400)
    assert replies.heard_after(LAG_S) == 0
    assert 299 <= replies.heard_after(0.3) <= 300
    replies.send(40)
    assert replies.heard_after(9) == 440
    replies.send(100)  # it came too late, and is heard from now on
    assert 489 <= replies.heard_after(LAG_S + 0.05) <= 490


def test_what_was_stopped_is_heard_no_further() -> None:
    replies = Replies()
    replies.send(1000)
    replies.stop("t", 250)
    assert replies.heard_after(5) == 250
    replies.end(done("t", 9))
    assert replies.heard_after(0) == 0


def test_a_reply_that_had_ended_before_its_truncate_is_kept_whole() -> None:
    replies = Replies()
    replies.send(1000)
    replies.report("t", 300)
    assert replies.end(done("t", 9)).ms == 1000
