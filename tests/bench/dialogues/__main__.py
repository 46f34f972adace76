"""Spoken dialogues with the demo model, in real time, through a real service: `python -m tests.bench.dialogues`.

espeak-ng says everything, in two voices, half of it with noise at 20 dB. First one dialogue at a time, compared with a
plain cascade of the same parts (nothing begins before the client reports the end of speech); then many at once, the
first of whom begin at random moments.
Prints a table; `--json FILE` writes a file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import mean

import msgspec
from websockets.asyncio.client import connect

from tests.bench.dialogues.conversation import Outcome, Turn, dialogue
from tests.bench.dialogues.utterances import GRAMMAR
from tests.bench.dialogues.voice_client import RealtimeVoiceClient
from tests.bench.machine import this_machine
from tests.bench.statistics import percentile
from tests.server_process import serving

VOICES = ("en-gb", "en-us")
NOISE = 300.0
"""Root mean square of the noise: a tenth of the voices' loudness, 20 dB below."""


class Mode(msgspec.Struct, frozen=True):
    """Number of dialogues at once; `is_cascade`: nothing begins before all was said."""

    at_once: int
    is_cascade: bool

    @property
    def title(self) -> str:
        """The name in the table."""
        return f"{'plain cascade' if self.is_cascade else 'Midstream'}, {self.at_once} at once"


class DialogueResult(msgspec.Struct, frozen=True):
    """Observations of one dialogue; `failure` if it did not reach its end."""

    is_noisy: bool
    outcome: Outcome | None
    failure: str = ""


def main() -> int:
    """Talk, and print a table."""
    options = _options()
    environ = {
        "MIDSTREAM_SPEECH": "both",
        "MIDSTREAM_SPEECH_GRAMMAR": str(GRAMMAR),
        "MIDSTREAM_MAX_SPEECH": "64",
        "MIDSTREAM_MESSAGE_RATE": "1000",
    }
    plan = [(Mode(1, is_cascade=cascade), options.alone) for cascade in (False, True)]
    plan += [(Mode(count, is_cascade=False), options.dialogues) for count in options.at_once]
    found: dict[Mode, list[DialogueResult]] = {}
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), environ) as server:
        for way, count in plan:
            found[way] = asyncio.run(_talks(server.ws_url, way, count, options))
            failures = [seen.failure for seen in found[way] if seen.outcome is None]
            print(
                f"{way.title}: {len(found[way])} dialogues",
                *failures[:3],
                sep="\n  ",
                file=sys.stderr,
                flush=True,
            )
    machine = this_machine()
    print(f"{machine.processor}, {machine.cores} cores; {machine.warning or 'nothing beside it'}; p50 / p95")
    print(table(found))
    if options.json:
        reported = [
            {"way": msgspec.to_builtins(way), "seen": msgspec.to_builtins(seen)}
            for way, seen in found.items()
        ]
        options.json.write_text(json.dumps(reported, indent=1))
    return 0


async def _talks(url: str, way: Mode, count: int, options: argparse.Namespace) -> list[DialogueResult]:
    """Hold so many dialogues, so many of them at once."""
    places = asyncio.Semaphore(way.at_once)

    async def one(number: int) -> DialogueResult:
        is_noisy = number % 4 >= 2
        async with places:
            if number < way.at_once:
                await asyncio.sleep(random.Random(number).uniform(0, options.apart_s))
            return await _run_dialogue(
                url, f"{way.title} {number}", way, number, silence_ms=options.silence_ms, is_noisy=is_noisy
            )

    return await asyncio.gather(*(one(number) for number in range(count)))


async def _run_dialogue(
    url: str, conversation: str, way: Mode, number: int, *, silence_ms: int, is_noisy: bool
) -> DialogueResult:
    async with connect(url, max_queue=None) as socket:
        hello = {"type": "hello", "client_id": f"talker-{number}", "features": ["audio"]}
        await socket.send(json.dumps(hello))
        while json.loads(await socket.recv())["type"] != "ready":
            pass
        phone = RealtimeVoiceClient(
            socket,
            conversation.replace(" ", "-").replace(",", ""),
            silence_ms=silence_ms,
            noise=NOISE if is_noisy else 0.0,
            cascade=way.is_cascade,
        )
        line = asyncio.create_task(phone.run())
        try:
            outcome = await dialogue(phone, random.Random(number), voice=VOICES[number % 2])
        except TimeoutError:
            return DialogueResult(is_noisy, None, json.dumps([frame for _, frame in phone.frames][-3:]))
        finally:
            line.cancel()
            await asyncio.gather(line, return_exceptions=True)
    return DialogueResult(is_noisy, outcome)


def table(found: dict[Mode, list[DialogueResult]]) -> str:
    """Return one column of figures for each way. Pure."""
    columns = [list(_figures(seen)) for seen in found.values()]
    width = max(len(way.title) for way in found) + 2
    head = " " * 44 + "".join(way.title.rjust(width) for way in found)
    rows = [
        name.ljust(44) + "".join(column[place][1].rjust(width) for column in columns)
        for place, (name, _) in enumerate(columns[0])
    ]
    return "\n".join([head, *rows])


def _figures(seen: Sequence[DialogueResult]) -> Iterable[tuple[str, str]]:
    whole = [one.outcome for one in seen if one.outcome is not None]
    turns = [turn for one in whole for turn in one.turns]
    cuts = [one.cut for one in whole]
    yield "dialogues to their end", f"{len(whole)} of {len(seen)}"
    for name, pick in _TIMES.items():
        yield name, _quantiles(map(pick, turns))
    paused = [turn for turn in turns if turn.had_pause]
    yield "answers before all was said", _share(turn.is_premature for turn in turns)
    yield "… where a pause stood inside", _share(turn.is_premature for turn in paused)
    for is_noisy in (False, True):
        some = [
            turn for one in seen if one.outcome and one.is_noisy is is_noisy for turn in one.outcome.turns
        ]
        words = sum(turn.words for turn in some)
        rate = f"{sum(turn.wrong for turn in some) / words:.1%} of {words}" if words else "-"
        yield f"words misheard, {'noise at 20 dB' if is_noisy else 'clean'}", rate
    yield "names told again", _share(one.knows_name for one in whole)
    yield "cuts whose history ends at the word heard", _share(cut.is_exact for cut in cuts)
    yield (
        "cuts that went on at the next number",
        _share(cut.goes_on for cut in cuts if cut.goes_on is not None),
    )
    yield (
        "cuts that were said again as heard",
        _share(cut.says_again for cut in cuts if cut.says_again is not None),
    )
    yield "speech over a reply to its last sound, ms", _quantiles(cut.silent_ms for cut in cuts)
    yield "engine steps after a cut, most", str(max((cut.steps_after or 0 for cut in cuts), default=0))


_TIMES: dict[str, Callable[[Turn], float | None]] = {
    "end of speech to words, ms": lambda turn: turn.understood_ms,
    "end of speech to first text, ms": lambda turn: turn.written_ms,
    "end of speech to first sound, ms": lambda turn: turn.first_sound_ms,
}


def _quantiles(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    middle, late = percentile(known, 0.5), percentile(known, 0.95)
    return "-" if middle is None or late is None else f"{middle:,.0f} / {late:,.0f}"


def _share(values: Iterable[bool]) -> str:
    known = list(values)
    return f"{mean(known):.1%} of {len(known)}" if known else "-"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.dialogues", description=__doc__)
    parser.add_argument(
        "--dialogues", type=int, default=200, help="for each number at once (default: %(default)d)"
    )
    parser.add_argument(
        "--alone", type=int, default=16, help="one at a time, each way (default: %(default)d)"
    )
    parser.add_argument("--at-once", type=int, nargs="*", default=[8], help="default: 8")
    parser.add_argument(
        "--silence-ms", type=int, default=500, help="of a sentence that may go on (default: %(default)d)"
    )
    parser.add_argument(
        "--apart-s",
        type=float,
        default=10.0,
        help="begin within this time; 0: in the same instant (default: %(default)g)",
    )
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
