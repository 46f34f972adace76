"""How far live translation lags: `python -m tests.bench.translation`; a table, and the files that `omnisteval` reads.

Documents of the bundled model's phrases come at three words a second, and are translated into Chinese: once two hypotheses
agree, three words behind, and sentence by sentence; beside them, re-translation of each sentence from scratch. Reference
and work are those of the offline translation by the same model. With `--omnisteval` an environment of its own is made for it.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
import tempfile
import venv
from collections.abc import Awaitable, Callable, Sequence
from itertools import accumulate
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec

import midstream
from demo_model.phrases import PHRASES
from sessions.interpreting.segments import next_segment
from tests.bench.lagging import Screen, Told, flicker, laal
from tests.bench.machine import this_machine
from tests.server_process import serving

WORDS_PER_S = 3.0
OMNISTEVAL = "omnisteval==0.1.10"
CACHE = Path(".cache/omnisteval")
SYSTEM = "Translate into Chinese: "


class Document(msgspec.Struct, frozen=True):
    """A source, and the words that it comes in, each with the blank behind it."""

    sentences: tuple[str, ...]

    @property
    def words(self) -> list[str]:
        return [f"{word} " for sentence in self.sentences for word in sentence.split()]

    @property
    def source_ms(self) -> float:
        return len(self.words) / WORDS_PER_S * 1000

    def heard_ms(self, src_off: int) -> float:
        """When so much of the source had come."""
        until = accumulate(map(len, self.words))
        came = next(count for count, chars in enumerate(until, 1) if chars >= src_off)
        return came / WORDS_PER_S * 1000


def documents(count: int, *, seed: int = 19) -> list[Document]:
    """Some documents of three to five sentences."""
    rng = random.Random(seed)
    phrases = [one for one in PHRASES if len(one.split()) > 1]
    return [
        Document(tuple(f"{one.capitalize()}." for one in rng.sample(phrases, rng.randint(3, 5))))
        for _ in range(count)
    ]


async def spoken(document: Document, hear: Callable[[str], Awaitable[object]]) -> float:
    """Says the words at their times; gives when that began."""
    begun = monotonic()
    for place, word in enumerate(document.words, 1):
        await asyncio.sleep(max(0.0, begun + place / WORDS_PER_S - monotonic()))
        await hear(word)
    return begun


async def interpreted(client: midstream.Client, document: Document, name: str, **fields: Any) -> Told:
    """What live translation tells."""
    place = {"conversation_id": name}
    interpretation = await client.interpret("zh", source="en", **place | fields)
    screen, begun = Screen(), monotonic()

    async def read() -> int:
        async for frame in client.follow(name):
            if frame["type"] == "delta":
                delay = document.heard_ms(frame["src_off"])
                screen.show(screen.text + frame["text"], delay=delay, elapsed=(monotonic() - begun) * 1000)
            elif frame["type"] == "done":
                return int(frame["usage"]["generated_tokens"])
        return 0

    reading = asyncio.create_task(read())
    await spoken(document, interpretation.say)
    await interpretation.say("", final=True)
    return screen.told(source_ms=document.source_ms, made=await reading)


async def asked(client: midstream.Client, text: str, name: str) -> tuple[str, int]:
    """A translation from scratch, and how many tokens it took."""
    reply = await client.send(
        SYSTEM + text, conversation_id=name, params={"temperature": 0}, on_busy="interrupt"
    )
    done = await reply.wait()
    return reply.text, int(done["usage"]["generated_tokens"])


async def retranslated(client: midstream.Client, document: Document, name: str) -> Told:
    """What a reader sees of a sentence that is translated anew with each word."""
    screen, begun, made, source, settled, before = Screen(), monotonic(), 0, "", 0, ""
    for place, word in enumerate(document.words, 1):
        await asyncio.sleep(max(0.0, begun + place / WORDS_PER_S - monotonic()))
        source += word
        segment = next_segment(source, settled, final=place == len(document.words))
        if segment is None:
            continue
        text, tokens = await asked(client, source[segment.start : segment.end], f"{name}:{place}")
        made += tokens
        elapsed = (monotonic() - begun) * 1000
        shown = f"{before} {text}".strip()
        screen.show(shown, delay=place / WORDS_PER_S * 1000, elapsed=elapsed)
        if segment.is_closed:
            settled, before = segment.end, shown
    return screen.told(source_ms=document.source_ms, made=made)


async def offline(client: midstream.Client, document: Document, name: str) -> tuple[list[str], int]:
    """Each sentence on its own, and the tokens of all."""
    answers = [await asked(client, one, f"{name}:{place}") for place, one in enumerate(document.sentences)]
    return [text for text, _ in answers], sum(tokens for _, tokens in answers)


WAYS: dict[str, dict[str, Any]] = {
    "agreement": {"told": "agreement"},
    "wait-3": {"told": "wait", "wait": 3},
    "segment": {"told": "segment"},
    "re-translation": {},
}


async def measured(url: str, many: Sequence[Document], *, at_once: int, into: Path) -> list[list[str]]:
    """A row for each way; the files of each lie in a folder of its name."""
    places = asyncio.Semaphore(at_once)
    async with midstream.connect(url, features=["interpret"]) as client:
        references = [await offline(client, one, f"offline:{n}") for n, one in enumerate(many)]
        rows = []
        for way, fields in WAYS.items():

            async def one(n: int, way: str = way, fields: dict[str, Any] = fields) -> Told:
                async with places:
                    name = f"{way}:{n}"
                    run = (
                        interpreted(client, many[n], name, **fields)
                        if fields
                        else retranslated(client, many[n], name)
                    )
                    return await run

            told = await asyncio.gather(*(one(n) for n in range(len(many))))
            rows.append(row(way, told, references))
            write(into / way, many, told, references)
    return rows


def row(way: str, told: Sequence[Told], references: Sequence[tuple[list[str], int]]) -> list[str]:
    """The figures of one way."""
    lags = []
    for times in ("delays", "elapsed"):
        each = [
            laal(getattr(one, times), source_ms=one.source_ms, reference=len(" ".join(reference)))
            for one, (reference, _) in zip(told, references, strict=True)
            if one.text
        ]
        lags.append(f"{sum(each) / max(1, len(each)):.0f}")
    same = sum(
        "".join(one.text.split()) == "".join(reference)
        for one, (reference, _) in zip(told, references, strict=True)
    )
    work = sum(one.made for one in told) / max(1, sum(tokens for _, tokens in references))
    return [way, *lags, f"{flicker(told):.3f}", f"{work:.2f}", f"{same}/{len(told)}"]


def write(
    folder: Path, many: Sequence[Document], told: Sequence[Told], references: Sequence[tuple[list[str], int]]
) -> None:
    """The files that `omnisteval longform` reads: a time for each character that is no blank."""
    folder.mkdir(parents=True, exist_ok=True)
    lines, segments, sentences = [], [], []
    for n, (document, one, (reference, _)) in enumerate(zip(many, told, references, strict=True)):
        places = [place for place, character in enumerate(one.text) if not character.isspace()]
        lines.append(
            {
                "source": f"{n}.wav",
                "prediction": "".join(one.text[place] for place in places),
                "delays": [one.delays[place] for place in places],
                "elapsed": [one.elapsed[place] for place in places],
                "source_length": one.source_ms,
            }
        )
        begun = 0.0
        for sentence, text in zip(document.sentences, reference, strict=True):
            took = len(sentence.split()) / WORDS_PER_S
            segments.append({"wav": f"{n}.wav", "offset": begun, "duration": took})
            sentences.append("".join(text.split()))
            begun += took
    (folder / "hypothesis.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, lines)) + b"\n")
    (folder / "segments.json").write_bytes(msgspec.json.encode(segments))
    (folder / "references.txt").write_text("\n".join(sentences) + "\n")


def evaluated(folder: Path) -> str:
    """What `omnisteval` says of a way. Raises CalledProcessError."""
    program = CACHE / "bin" / "omnisteval"
    if not program.exists():
        venv.create(CACHE, with_pip=True)
        subprocess.run([CACHE / "bin" / "python", "-m", "pip", "install", "-q", OMNISTEVAL], check=True)
    files = {
        "--speech_segmentation": "segments.json",
        "--ref_sentences_file": "references.txt",
        "--hypothesis_file": "hypothesis.jsonl",
    }
    named = [word for option, name in files.items() for word in (option, str(folder / name))]
    command = [str(program), "longform", *named, "--char_level", "--bleu_tokenizer", "zh"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main() -> int:
    """Measures, and prints a row a way. Exits 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=100)
    parser.add_argument("--at-once", type=int, default=32, help="documents that come at the same time")
    parser.add_argument(
        "--into", type=Path, default=Path(".cache/translation"), help="where the files are written"
    )
    parser.add_argument("--omnisteval", action="store_true", help="have it say LongYAAL and chrF, too")
    given = parser.parse_args()
    machine = this_machine()
    print(f"{machine.processor}, {machine.cores} cores; {machine.warning or 'quiet'}")
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), WITHOUT_LIMITS) as server:
        work = measured(server.url, documents(given.documents), at_once=given.at_once, into=given.into)
        rows = asyncio.run(work)
    head = ["way", "LAAL, ms", "LAAL with computing, ms", "flicker", "work", "as offline"]
    for line in (head, *rows):
        print(" | ".join(f"{cell:>{len(name)}}" for cell, name in zip(line, head, strict=True)))
    for way in WAYS if given.omnisteval else ():
        print(way, evaluated(given.into / way), sep="\n")
    return 0


WITHOUT_LIMITS = {"MIDSTREAM_MESSAGE_RATE": "10000", "MIDSTREAM_READ_RATE": "10000"}

if __name__ == "__main__":
    sys.exit(main())
