"""What happens to a session's interpretations, in the words of a translation session."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from openai.types.realtime import RealtimeTranslationServerEvent
from pydantic import TypeAdapter

from connections.api.realtime.encoder import EventLines
from connections.api.realtime.events import ServerEvent
from connections.api.realtime.translation.endpoint import decode
from connections.api.realtime.translation.session import (
    TranslationEventEncoder,
    TranslationFrame,
    TranslationSession,
    closed,
)
from connections.protocol.errors import Close
from connections.protocol.frames import Error
from engine.messages import Languages, ModelFacts, Params
from sessions.errors import Refused
from sessions.events import Done, Failure, Gap, Reason, SourceText
from tests.connections.factory import accepted, delta, done

_events: TypeAdapter[Any] = TypeAdapter(RealtimeTranslationServerEvent)
FACTS = ModelFacts(
    model="m",
    context_tokens=100,
    defaults=Params(),
    device="cpu",
    dtype="float32",
    max_batch=1,
    parameters=1,
    features=("translate",),
    languages=Languages(("eng_Latn",), ("zho_Hans",), 100),
)


def accept(encoder: TranslationEventEncoder, number: int) -> str:
    """An interpretation of the session's that was accepted; gives its turn."""
    encoder.begin(f"k{number}")
    turn_id = f"t{number}"
    assert encoder.encode(accepted(turn_id, f"k{number}")) == ()
    return turn_id


def source(turn_id: str, off: int, text: str) -> SourceText:
    return SourceText(conversation_id="c", turn_id=turn_id, seq=2, off=off, text=text)


def deltas(events: Any) -> list[str]:
    return [event.delta for event in events]


def test_interpretations_follow_each_other_as_their_sources_do() -> None:
    encoder = TranslationEventEncoder()
    first = accept(encoder, 1)
    encoder.encode(source(first, 0, "One. "))
    texts = deltas(encoder.encode(delta("Eins.", 0, first)))
    for frame in (source("other", 0, "Theirs. "), delta("Ihres.", 0, "other"), done("other")):
        assert encoder.encode(frame) == ()
    assert encoder.current is not None
    encoder.encode(done(first))
    assert encoder.current is None
    second = accept(encoder, 2)
    encoder.encode(source(second, 0, "Two.\n"))
    texts += deltas(encoder.encode(delta("Zwei", 0, second)))
    texts += deltas(encoder.encode(delta(".", 4, second)))
    encoder.encode(done(second))
    third = accept(encoder, 3)
    encoder.encode(source(third, 0, "三"))
    texts += deltas(encoder.encode(delta("Drei.", 0, third)))
    assert "".join(texts) == "Eins. Zwei.\nDrei."
    encoder.sends_source = True
    assert deltas(encoder.encode(source(third, 1, "四"))) == ["四"]


@pytest.mark.parametrize(
    ("end", "code", "words"),
    [
        (done("t1", reason=Reason.CANCELLED), "translation_stopped", "was stopped elsewhere"),
        (done("t1", reason=Reason.LENGTH), "translation_cut", "its token limit"),
        (done("t1", reason=Reason.TIMEOUT), "translation_timed_out", "too long"),
        (done("t1", reason=Reason.FILTERED), "content_filter", "A filter stopped"),
        (
            done("t1", reason=Reason.ERROR, error=Failure(code="internal", message="It broke.")),
            "internal",
            "It broke.",
        ),
    ],
)
def test_an_end_that_nobody_wanted_is_an_error_and_what_comes_begins_anew(
    end: Done, code: str, words: str
) -> None:
    encoder = TranslationEventEncoder()
    accept(encoder, 1)
    [error] = encoder.encode(end)
    fields: Any = msgspec.to_builtins(error)
    assert (fields["error"]["code"], words in fields["error"]["message"]) == (code, True)
    assert encoder.current is None


def test_a_hole_ends_the_connection() -> None:
    ends: list[Close] = []
    encoder = TranslationEventEncoder(ends.append)
    assert encoder.encode(Gap(conversation_id="c", epoch="e", min_seq=9)) == ()
    assert [close.code for close in ends] == [1013]


def test_a_refusal_names_the_field_as_it_is_called_here() -> None:
    [error] = TranslationEventEncoder().encode(
        Error(ref="e1", code="bad_params", message="`target` is one of zho_Hans.")
    )
    fields: Any = msgspec.to_builtins(error)["error"]
    assert (fields["param"], fields["code"], fields["event_id"]) == (
        "session.audio.output.language",
        "invalid_value",
        "e1",
    )


def session(facts: ModelFacts | None = FACTS, *voices: str) -> TranslationSession:
    return TranslationSession(
        conversation_id="c", model="m", facts=lambda: facts, expires_at=9, voices=voices
    )


def update(**fields: Any) -> Any:
    return decode(msgspec.json.encode({"type": "session.update", "session": fields}).decode())


def test_what_a_session_says_fits_openais_types() -> None:
    one = session()
    audio = {"input": {"transcription": {"model": "x"}}, "output": {"language": "zh"}}
    events: list[ServerEvent] = [one.created(), one.update(update(audio=audio, publish_policy="segment"))]
    lines = (
        EventLines(TranslationEventEncoder().encode)
        .encode(TranslationFrame(events=tuple(events)))
        .splitlines()
    )
    coded = [
        _events.validate_json(line)
        for line in (*lines, EventLines(TranslationEventEncoder().encode).encode(closed()))
    ]
    assert [event.type for event in coded] == ["session.created", "session.updated", "session.closed"]
    assert coded[0].session.audio.output.language is None
    assert (coded[1].session.audio.output.language, coded[1].session.audio.input.transcription.model) == (
        "zh",
        "x",
    )


def test_what_is_not_said_again_stays_and_null_takes_it_back() -> None:
    one = session(None)
    one.update(
        update(
            audio={"input": {"language": "en", "transcription": {"model": ""}}, "output": {"language": "zh"}}
        )
    )
    one.update(update(publish_policy="wait", wait_words=5))
    kept = one.settings
    assert (kept.options.source, kept.options.target) == ("en", "zh")
    assert (kept.options.publish_policy, kept.options.wait_words) == ("wait", 5)
    assert kept.transcription is not None
    one.update(update(audio={"input": {"language": None, "transcription": None}}))
    assert (one.settings.options.source, one.settings.transcription) == ("auto", None)


@pytest.mark.parametrize(
    ("voices", "words"),
    [(("de", "cmn"), "is not a voice of this server. Available voices include de"), ((), "has no voice")],
)
def test_a_voice_that_is_not_there_is_refused_and_changes_nothing(
    voices: tuple[str, ...], words: str
) -> None:
    one = session(FACTS, *voices)
    with pytest.raises(Refused, match=rf"`session\.audio\.output\.voice` .*{words}"):
        one.update(update(audio={"output": {"language": "zh", "voice": "nobody"}}))
    assert one.settings.options.target is None


def test_nothing_comes_behind_the_close() -> None:
    one = session()
    one.close()
    one.close()
    for act in (lambda: one.append("Hello.", None), lambda: one.update(update(publish_policy="wait"))):
        with pytest.raises(Refused, match=r"no event can follow `session\.close`\."):
            act()
