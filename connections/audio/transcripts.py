"""Recognized words in the requested formats: JSON, text, and subtitles (SubRip, WebVTT). Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from connections.audio.schemas import Duration, TimedSegment, Transcription, VerboseTranscription
from connections.audio.transcription_request import Format, Granularity
from speech.recognition.messages import Segment

_MEDIA_TYPES: dict[Format, str] = {
    "json": "application/json",
    "verbose_json": "application/json",
    "text": "text/plain",
    "srt": "text/plain",
    "vtt": "text/vtt",
}


def media_type(wanted: Format) -> str:
    """Return the media type of a format."""
    return _MEDIA_TYPES[wanted]


def text_of(segments: Sequence[Segment]) -> str:
    """Return all words."""
    return " ".join(segment.text for segment in segments)


def transcript(
    segments: Sequence[Segment],
    seconds: float,
    wanted: Format,
    granularities: Sequence[Granularity],
    language: str,
) -> bytes:
    """Return the words of a recording of this length in a format. `language`: its name."""
    match wanted:
        case "json":
            return msgspec.json.encode(Transcription(text_of(segments), Duration(round(seconds, 2))))
        case "verbose_json":
            return msgspec.json.encode(_verbose(segments, seconds, granularities, language))
        case "text":
            return f"{text_of(segments)}\n".encode()
        case "srt":
            return "\n".join(_subtitles(segments, lambda at: _time(at, ","))).encode()
        case "vtt":
            return "\n".join(("WEBVTT", "", *_captions(segments))).encode()


def _verbose(
    segments: Sequence[Segment], seconds: float, granularities: Sequence[Granularity], language: str
) -> VerboseTranscription:
    timed = tuple(
        TimedSegment(id=number, start=one.start, end=one.end, text=one.text)
        for number, one in enumerate(segments)
    )
    words = tuple(word for segment in segments for word in segment.words)
    return VerboseTranscription(
        language=language,
        duration=round(seconds, 2),
        text=text_of(segments),
        words=words if "word" in granularities else None,
        segments=timed if "segment" in granularities else None,
        usage=Duration(round(seconds, 2)),
    )


def _subtitles(segments: Sequence[Segment], time: Callable[[float], str]) -> Iterator[str]:
    for number, segment in enumerate(segments, 1):
        yield f"{number}\n{time(segment.start)} --> {time(segment.end)}\n{segment.text}\n"


def _captions(segments: Sequence[Segment]) -> Iterator[str]:
    for segment in segments:
        yield f"{_time(segment.start, '.')} --> {_time(segment.end, '.')}\n{segment.text}\n"


def _time(seconds: float, point: str) -> str:
    """Return hours, minutes, seconds and thousandths."""
    whole, thousandths = divmod(round(seconds * 1000), 1000)
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours:02}:{minute:02}:{second:02}{point}{thousandths:03}"
