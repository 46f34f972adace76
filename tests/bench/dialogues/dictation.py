"""Spoken dialogues into the page: `python -m tests.bench.dialogues.dictation`.

Each is a recording that a real Chromium hears as its microphone: a name, the question for it, and a sum, with time between them
for the spoken replies. A real service understands it, and the demo model answers. What the page shows at the end is looked at.
Exit status 1: a dialogue came to no end, or the browser complained.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import tempfile
import wave
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
from playwright.async_api import Error

from speech.pocketsphinx_decoder import in_digits
from tests.bench.dialogues.voice_client import RATE, SERVE, SPEECH, VOICES, drawn, number, utterance
from tests.bench.page.visits import chromium
from tests.bench.report import this_machine
from tests.browser.chat_page import ChatPage
from tests.browser.conftest import DESKTOP
from tests.server_process import serving

LEAD_S, GAP_S, REST_S = 2.0, 8.0, 60.0
"""Before the first words; between what is said, for the reply; and of silence behind it."""
LONGER_S = 40.0
"""How much longer than its recording a dialogue may take."""
AT_ONCE = 3
TURNS = 3
ENDED = f"() => document.querySelectorAll('.reply').length >= {TURNS} && !document.querySelector('.reply[aria-busy=true]')"
_NUMBERS = re.compile(r"what is (\d+) plus (\d+)")


class Dialogue(msgspec.Struct, frozen=True):
    """What is to be said: a name, and two numbers."""

    name: str
    one: str
    other: str

    @property
    def sentences(self) -> tuple[str, ...]:
        """Sentence by sentence."""
        return f"my name is {self.name}", "what is my name", f"what is {self.one} plus {self.other}"

    @property
    def answers(self) -> tuple[str, ...]:
        """What has to be in each reply."""
        return self.name, self.name, str(_sum(self.sentences[-1]))


class PageResult(msgspec.Struct, frozen=True):
    """What the page showed: what was heard and answered, in turn. `failure`: why it has no end."""

    dialogue: Dialogue
    pairs: tuple[tuple[str, str], ...]
    complaints: tuple[str, ...] = ()
    failure: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether each sentence has its reply, and nothing else was heard."""
        return not self.failure and len(self.pairs) == TURNS

    @property
    def right(self) -> int:
        """How many replies say what is right for what was said."""
        return sum(
            _has(reply, answer) for (_, reply), answer in zip(self.pairs, self.dialogue.answers, strict=False)
        )

    @property
    def understood(self) -> int:
        """How many sentences were understood word for word."""
        wanted = [in_digits(text) for text in self.dialogue.sentences]
        return sum(received.lower() == one for (received, _), one in zip(self.pairs, wanted, strict=False))

    @property
    def fitting(self) -> int:
        """How many replies say what is right for what was understood."""
        name = ""
        count = 0
        for received, reply in self.pairs:
            words = received.lower()
            if words.startswith(("my name is ", "call me ")):
                name = words.rpartition(" ")[2]
            wanted = _sum(words) if _NUMBERS.search(words) else name
            count += bool(wanted) and _has(reply, str(wanted))
        return count


def _sum(text: str) -> int | None:
    found = _NUMBERS.search(in_digits(text))
    return None if found is None else int(found[1]) + int(found[2])


def _has(reply: str, word: str) -> bool:
    return re.search(rf"\b{re.escape(word)}\b", reply, re.IGNORECASE) is not None


def main() -> int:
    """Talk, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.dialogues.dictation", description=__doc__)
    parser.add_argument("--dialogues", type=int, default=200, help="default: %(default)d")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help="default: %(default)d")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="midstream-page-talk-") as name,
        serving(Path(name), SPEECH, command=SERVE) as server,
    ):
        seen = asyncio.run(_talks(server.url, Path(name), count=options.dialogues, at_once=options.at_once))
    print(this_machine())
    print("\n".join(f"{name:52}{value:>14}" for name, value in rows(seen)))
    bad = [one for one in seen if one.failure or one.complaints]
    for one in bad[:5]:
        print(f"  {one.dialogue.sentences}: {one.failure} {'; '.join(one.complaints)} {one.pairs}")
    if options.json:
        options.json.write_text(json.dumps([msgspec.to_builtins(one) for one in seen], indent=1))
    return 1 if bad else 0


def rows(seen: Sequence[PageResult]) -> Iterator[tuple[str, str]]:
    """Yield the table: what was counted, and of how many. Pure."""
    turns = TURNS * len(seen)
    yield "dialogues that came to their end", f"{sum(one.is_whole for one in seen)} of {len(seen)}"
    yield "dialogues with all answers right", f"{sum(one.right == TURNS for one in seen)} of {len(seen)}"
    yield "replies right for what was said", f"{sum(one.right for one in seen)} of {turns}"
    yield "sentences understood word for word", f"{sum(one.understood for one in seen)} of {turns}"
    yield "replies right for what was understood", f"{sum(one.fitting for one in seen)} of {turns}"
    yield "complaints of the browser", str(sum(len(one.complaints) for one in seen))


async def _talks(url: str, folder: Path, *, count: int, at_once: int) -> list[PageResult]:
    places = asyncio.Semaphore(at_once)
    seen: list[PageResult] = []

    async def one(place: int) -> None:
        async with places:
            seen.append(await _run_dialogue(url, folder, place))
        if len(seen) % 10 == 0:
            print(f"{len(seen)} of {count}", file=sys.stderr, flush=True)

    await asyncio.gather(*(one(place) for place in range(count)))
    return seen


async def _run_dialogue(url: str, folder: Path, place: int) -> PageResult:
    """Hold one dialogue, by a browser of its own: what it hears is fixed at its start."""
    rng, file, failure = random.Random(place), folder / f"said-{place}.wav", ""
    dialogue = Dialogue(drawn("name", rng), number(rng, 50), number(rng, 50))
    lasts_s = await _record(dialogue.sentences, VOICES[place % 2], file)
    complaints: list[str] = []
    audio = ("--use-fake-device-for-media-stream", f"--use-file-for-fake-audio-capture={file}%noloop")
    async with chromium(*audio) as browser:
        context = await browser.new_context(permissions=["microphone"], viewport=DESKTOP)
        context.on("weberror", lambda error: complaints.append(str(error.error)))
        context.on(
            "console",
            lambda message: complaints.append(message.text) if message.type in {"error", "warning"} else None,
        )
        chat = ChatPage(await context.new_page())
        try:
            await chat.open(url)
            await chat.page.get_by_role("button", name="Talk", exact=True).click()
            await chat.page.wait_for_function(ENDED, timeout=(lasts_s + LONGER_S) * 1000)
        except (Error, AssertionError) as why:
            failure = str(why).partition("\n")[0]
        texts = [text for _, text in await chat.seen()]  # a reply comes after its message
    file.unlink()
    return PageResult(dialogue, tuple(zip(texts[::2], texts[1::2], strict=False)), tuple(complaints), failure)


async def _record(sentences: Sequence[str], voice: str, file: Path) -> float:
    """Write what a microphone hears; gives the seconds until the last reply may have ended."""
    parts = [np.zeros(int(LEAD_S * RATE), np.int16)]
    for text in sentences:
        parts += [(await utterance(text, voice=voice)).pcm, np.zeros(int(GAP_S * RATE), np.int16)]
    sound = np.concatenate(parts)
    with wave.open(str(file), "wb") as target:
        target.setparams((1, 2, RATE, 0, "NONE", "not compressed"))
        target.writeframes(sound.astype("<i2").tobytes() + bytes(int(REST_S * RATE) * 2))
    return len(sound) / RATE


if __name__ == "__main__":
    sys.exit(main())
