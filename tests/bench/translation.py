"""The lag of live translation: `python -m tests.bench.translation`, some four minutes; a table with marks.

Documents of the bundled translator's language, each sentence of which has something that its training never saw, come at three
words a second, each over a connection of its own. The service translates them into Chinese as `make run` starts it: once three
hypotheses agree, three words behind, and sentence by sentence; beside them re-translation of each sentence from scratch with each
word. All have the same weights. References are those that the language has. Work is the tokens that the engine makes, those that a
hypothesis repeats included, beside the offline translation's: each takes a pass of the decoder. Where the server read a connection more slowly (`midstream_bounds_reached_total`), lags say nothing of computing: that fails, too.

LongYAAL (Polák et al., arXiv 2509.17349) and chrF (Popović, WMT 2015) are `omnisteval`'s, in an environment of its own below
`.cache` that is made the first time. Flicker: normalized erasure, Arivazhagan et al., IWSLT 2020.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import subprocess
import sys
import tempfile
import urllib.request
import venv
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec

import midstream
from app.models import TRANSLATOR_NAME as MODEL
from sessions.translation.sentences import next_segment
from tests.bench.report import Measured, Report, Target, at_most, none
from tests.demo_translator.held_out import DOCUMENTS, Pair
from tests.server_process import serving

WORDS_PER_S = 3.0
SOURCE, TARGET = "eng_Latn", "zho_Hans"
WAYS: dict[str, dict[str, Any]] = {
    "agreement": {"publish_policy": "agreement"},
    "wait-3": {"publish_policy": "wait", "wait_words": 3},
    "segment": {"publish_policy": "segment"},
    "re-translation": {},
}
LIVE = "agreement"
MOST_LAG_MS, LEAST_CHRF = at_most(2_000.0), Target(0.97)
WITHOUT_LIMITS = {"MIDSTREAM_LIMITS": "message_rate=10000,read_rate=10000"}
STATISTICS_S = 2.0
"""After so long without requests the metrics have all of the engine's tokens."""
_MADE = re.compile(r"^midstream_engine_generated_tokens_total\S* (\S+)$", re.MULTILINE)
_BOUND = re.compile(r'^midstream_bounds_reached_total\{bound="(\w+)"\} (\S+)$', re.MULTILINE)
OMNISTEVAL = "omnisteval==0.1.10"
CACHE = Path(".cache/omnisteval")
_SCORE = re.compile(r"^\s+(\S.*?)\s{2,}(-?\d+\.\d+)\s*$", re.MULTILINE)


class EmissionTimes(msgspec.Struct, frozen=True, kw_only=True):
    """A reader's view of one document. For each character of `text`, in milliseconds since the source began to come:

    `elapsed`: when it was shown for good; `delays`: when the source that it was made from had come. `erased`: characters
    that were shown and taken back.
    """

    text: str
    delays: list[float]
    elapsed: list[float]
    source_ms: float
    erased: int = 0


class Screen:
    """The view of a reader who is shown whole texts, each in place of the last."""

    def __init__(self) -> None:
        self.text = ""
        self._erased = 0
        self._delays: list[float] = []
        self._elapsed: list[float] = []

    def show(self, text: str, *, delay: float, elapsed: float) -> None:
        """Show a text: the part that differs from the last one is taken back."""
        pairs = enumerate(zip(self.text, text, strict=False))
        same = next((place for place, (one, other) in pairs if one != other), min(len(self.text), len(text)))
        self._erased += len(self.text) - same
        self._delays[same:] = [delay] * (len(text) - same)
        self._elapsed[same:] = [elapsed] * (len(text) - same)
        self.text = text

    def emission_times(self, *, source_ms: float) -> EmissionTimes:
        """Return what was seen in the end."""
        return EmissionTimes(
            text=self.text,
            delays=self._delays,
            elapsed=self._elapsed,
            source_ms=source_ms,
            erased=self._erased,
        )


def flicker(emissions: Sequence[EmissionTimes]) -> float:
    """Return how many characters were taken back for each one that stayed."""
    return sum(one.erased for one in emissions) / max(1, sum(len(one.text) for one in emissions))


class Sentence(msgspec.Struct, frozen=True):
    """A sentence of a document: when its words began to come, how long that took, in seconds, and its translation."""

    begun_s: float
    took_s: float
    reference: str


class Document:
    """A source and its words, each followed by its blank."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self.sentences = [pair.english for pair in pairs]
        self.references = [pair.chinese for pair in pairs]
        self.words = [f"{word} " for one in self.sentences for word in one.split()]
        self.source_ms = len(self.words) / WORDS_PER_S * 1000

    def heard_ms(self, src_off: int) -> float:
        """Return the time at which so much of the source had come."""
        until = accumulate(map(len, self.words))
        return next(count for count, chars in enumerate(until, 1) if chars >= src_off) / WORDS_PER_S * 1000

    def timed(self, references: Sequence[str]) -> list[Sentence]:
        """Return the sentences, with the times of their words and their translations."""
        took = [len(one.split()) / WORDS_PER_S for one in self.sentences]
        return [Sentence(*one) for one in zip([0.0, *accumulate(took)], took, references, strict=False)]


class Offline(msgspec.Struct, frozen=True):
    """A document's sentences, each translated by itself."""

    texts: list[str]

    def emission_times(self, document: Document) -> EmissionTimes:
        """Return the view of a reader who got each translation when its source was complete."""
        screen = Screen()
        for timed in document.timed(self.texts):
            whole = (timed.begun_s + timed.took_s) * 1000
            screen.show(screen.text + timed.reference, delay=whole, elapsed=whole)
        return screen.emission_times(source_ms=document.source_ms)


async def interpreted(
    client: midstream.Client, document: Document, name: str, **fields: Any
) -> EmissionTimes:
    """Return a reader's view of a live translation."""
    interpretation = await client.interpret("zh", source="en", conversation_id=name, model=MODEL, **fields)
    screen, started = Screen(), monotonic()

    async def read() -> None:
        async for frame in client.follow(name):
            if frame["type"] == "delta":
                delay, elapsed = document.heard_ms(frame["src_off"]), (monotonic() - started) * 1000
                screen.show(screen.text + frame["text"], delay=delay, elapsed=elapsed)
            elif frame["type"] == "done":
                return

    reading = asyncio.create_task(read())
    for place, word in enumerate(document.words, 1):
        await asyncio.sleep(max(0.0, started + place / WORDS_PER_S - monotonic()))
        await interpretation.append(word)
    await interpretation.append("", final=True)
    await reading
    return screen.emission_times(source_ms=document.source_ms)


async def retranslated(client: midstream.Client, document: Document, name: str) -> EmissionTimes:
    """Return a reader's view of a sentence that is translated from scratch with each word."""
    screen, started, source, settled, before = Screen(), monotonic(), "", 0, ""
    for place, word in enumerate(document.words, 1):
        await asyncio.sleep(max(0.0, started + place / WORDS_PER_S - monotonic()))
        source += word
        segment = next_segment(source, settled, final=place == len(document.words))
        if segment is None:
            continue
        text = await translate_whole(client, source[segment.start : segment.end], f"{name}:{place}")
        screen.show(before + text, delay=place / WORDS_PER_S * 1000, elapsed=(monotonic() - started) * 1000)
        if segment.is_closed:
            settled, before = segment.end, screen.text
    return screen.emission_times(source_ms=document.source_ms)


async def translate_whole(client: midstream.Client, text: str, name: str) -> str:
    """Return a translation from scratch."""
    params = {"source": SOURCE, "target": TARGET}
    reply = await client.send(text, conversation_id=name, model=MODEL, params=params, on_busy="interrupt")
    await reply.wait()
    return reply.text


async def offline(client: midstream.Client, document: Document, name: str) -> Offline:
    """Return the translations of each sentence on its own."""
    return Offline([
        await translate_whole(client, one, f"{name}:{n}") for n, one in enumerate(document.sentences)
    ])  # fmt: skip


async def measured(
    url: str, many: Sequence[Document], ways: Sequence[str], *, at_once: int
) -> tuple[list[Offline], dict[str, tuple[float, list[EmissionTimes]]], Counter[str]]:
    """Return the offline translations, the work and the views of each way, and the bounds that live documents met.

    Each live document has a connection of its own, as each speaker has.
    """
    places, found = asyncio.Semaphore(at_once), {}
    async with midstream.connect(url) as client:
        references = [await offline(client, one, f"offline:{n}") for n, one in enumerate(many)]
    before, offline_tokens = bounds(url), await tokens_made(url)
    for way in ways:

        async def one(n: int, way: str = way) -> EmissionTimes:
            async with places, midstream.connect(url, features=["interpret"]) as client:
                if options := WAYS[way]:
                    return await interpreted(client, many[n], f"{way}:{n}", **options)
                return await retranslated(client, many[n], f"{way}:{n}")

        tokens = await tokens_made(url)
        emissions = list(await asyncio.gather(*(one(n) for n in range(len(many)))))
        found[way] = (await tokens_made(url) - tokens) / offline_tokens, emissions
    return references, found, bounds(url) - before


def metrics(url: str) -> str:
    """Return the server's metrics."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:
        return str(answer.read().decode())


def bounds(url: str) -> Counter[str]:
    """Return how often connections met each bound of the server."""
    return Counter({bound: int(float(times)) for bound, times in _BOUND.findall(metrics(url))})


async def tokens_made(url: str) -> float:
    """Return how many tokens the server's engines have made."""
    await asyncio.sleep(STATISTICS_S)
    return sum(map(float, _MADE.findall(metrics(url))))


def install() -> None:
    """Create `omnisteval`'s environment if it does not exist. Raises CalledProcessError, OSError."""
    if not (CACHE / "bin" / "omnisteval").exists():
        venv.create(CACHE, with_pip=True)
        subprocess.run([CACHE / "bin" / "python", "-m", "pip", "install", "-q", OMNISTEVAL], check=True)


def score(
    folder: Path, emissions: Sequence[EmissionTimes], sentences: Sequence[Sequence[Sentence]]
) -> tuple[float, float]:
    """Score documents against their sentences, by characters that are not blank: LongYAAL with computing, chrF (0 to 100).

    Raises CalledProcessError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines, segments, references = [], [], []
    for number, (one, of) in enumerate(zip(emissions, sentences, strict=True)):
        places = [place for place, character in enumerate(one.text) if not character.isspace()]
        lines.append({
            "source": f"{number}.wav",
            "prediction": "".join(one.text[place] for place in places),
            "delays": [one.delays[place] for place in places],
            "elapsed": [one.elapsed[place] for place in places],
            "source_length": one.source_ms,
        })  # fmt: skip
        for sentence in of:
            segments.append({"wav": f"{number}.wav", "offset": sentence.begun_s, "duration": sentence.took_s})
            references.append("".join(sentence.reference.split()))
    (folder / "hypothesis.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, lines)) + b"\n")
    (folder / "segments.json").write_bytes(msgspec.json.encode(segments))
    (folder / "references.txt").write_text("\n".join(references) + "\n")
    command = [
        *(
            str(CACHE / "bin" / "omnisteval"),
            "longform",
            "--speech_segmentation",
            str(folder / "segments.json"),
        ),
        *(
            "--ref_sentences_file",
            str(folder / "references.txt"),
            "--hypothesis_file",
            str(folder / "hypothesis.jsonl"),
        ),
        *("--char_level", "--bleu_tokenizer", "zh"),
    ]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = {name: float(value) for name, value in _SCORE.findall(told)}
    return found["LongYAAL (CA)"], found["chrF"]


def findings(
    folder: Path,
    way: str,
    many: Sequence[Document],
    emissions: Sequence[EmissionTimes],
    references: Sequence[Offline],
    *,
    work: float,
) -> Iterator[Measured]:
    """Yield the figures of one way. Raises CalledProcessError."""
    known = [document.timed(document.references) for document in many]
    whole = [one.emission_times(of) for one, of in zip(references, many, strict=True)]
    best, (lag_ms, chrf) = score(folder / "best", whole, known)[1], score(folder, emissions, known)
    made = [document.timed(one.texts) for document, one in zip(many, references, strict=True)]
    near = score(folder / "offline", emissions, made)[1]
    for label, value, unit, target in (
        ("LongYAAL with computing", lag_ms, "ms", MOST_LAG_MS),
        ("chrF, beside the offline translation's", chrf / best, "", LEAST_CHRF),
        ("chrF to the offline translation", near, "", None),
        ("flicker", flicker(emissions), "", at_most(0)),
        ("passes of the decoder, times the offline translation's", work, "", None),
    ):
        is_held = way == LIVE
        yield Measured(label=f"{way}: {label}", value=value, unit=unit, target=target if is_held else None)


def main() -> int:
    """Measure, and print the figures of each way; return 1 if a mark is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.translation", description=__doc__)
    parser.add_argument(
        "--documents", type=int, default=len(DOCUMENTS), help="how many (default: %(default)d)"
    )
    parser.add_argument("--at-once", type=int, default=32, help="documents that come at the same time")
    parser.add_argument("--ways", nargs="+", choices=tuple(WAYS), default=tuple(WAYS))
    given = parser.parse_args()
    install()
    report, many = Report(), [Document(pairs) for pairs in DOCUMENTS[: given.documents]]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with serving(folder, WITHOUT_LIMITS) as server:
            references, live, met = asyncio.run(measured(server.url, many, given.ways, at_once=given.at_once))
        for way, (work, emissions) in live.items():
            report.findings += findings(folder / way, way, many, emissions, references, work=work)
    report.findings.append(none("bounds of the server that were met", [*met]))
    return report.conclude(None)


if __name__ == "__main__":
    sys.exit(main())
