"""`make bench-page`: every budget of the page in one table, each with its target, and JSON.

Visits over a slow line, long replies that stream, a conversation of ten thousand messages, and the rules of axe in each state, light and dark: WCAG 2.2 AA and best practices. A real Chromium shows the page. Over the line it visits
the real service: 1.6 Mbit/s, a round trip of 150 ms; Chromium emulates it, and what it leaves out, the frames of a socket, is
delayed here. A scripted engine answers, so that no model is waited for. The first visitor after the start is not counted: for that
one the files are compressed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from playwright.async_api import Browser

from tests.bench.page import conversations, rendering
from tests.bench.page.visits import NetworkProfile, chromium, findings, visited
from tests.bench.report import RESULTS, Failure, Measured, Report, at_most
from tests.browser.chat_page import ChatPage
from tests.browser.conftest import DESKTOP
from tests.browser.fake_server import peer
from tests.browser.page_states import SCENES, Scene, axe_script, violations
from tests.chaos import gateway
from tests.clients.environments import NotInstallable
from tests.server_process import ServerProcess, serving

SLOW = NetworkProfile(down_kbit=1600, up_kbit=750, round_trip_ms=150)
VISITS, STREAMING, LONG, RULES = PARTS = ("visits", "streaming", "long", "rules")


class Extent(msgspec.Struct, frozen=True, kw_only=True):
    """The size of the measurements."""

    visitors: int = 7
    rounds: int = 5
    messages: int = conversations.MESSAGES
    replies: tuple[rendering.Kind, ...] = tuple(rendering.kinds())


QUICK = Extent(visitors=1, rounds=1, messages=400, replies=(rendering.FEW_LINES,))
"""An extent that shows that everything works, without figures."""


def main() -> int:
    """Measure, print, write; return 1 if a target is missed, or something could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.page", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a little of all, to see that it works")
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS)
    )
    parser.add_argument("--out", type=Path, help="file for results (docs/bench/page.json; of a part: none)")
    options = parser.parse_args()
    report = asyncio.run(measure(QUICK if options.quick else Extent(), options.only))
    whole = not options.quick and set(options.only) == set(PARTS)
    return report.conclude(options.out or (RESULTS / "page.json" if whole else None))


async def measure(extent: Extent, parts: Sequence[str] = PARTS) -> Report:
    """Measure some parts, one after the other."""
    report = Report(details={"line": SLOW})
    async with chromium() as browser:
        for part in (one for one in PARTS if one in parts):
            try:
                report.findings += await _rows(browser, part, extent, report)
            except NotInstallable as why:
                report.failures.append(Failure(part, str(why)))
    return report


async def _rows(browser: Browser, part: str, extent: Extent, report: Report) -> list[Measured]:
    if part == VISITS:  # one visitor after the other
        with _service() as server:
            made = [await visited(browser, server.url, SLOW) for _ in range(extent.visitors + 1)]
        report.details[VISITS] = made[1:]
        return list(findings(made[1:]))
    if part == STREAMING:
        return await rendering.rows(browser, rounds=extent.rounds, replies=extent.replies)
    if part == LONG:
        return await conversations.long_rows(browser, rounds=extent.rounds, messages=extent.messages)
    script = axe_script()
    return [await _violations(browser, script, scene) for scene in SCENES]


@contextmanager
def _service() -> Iterator[ServerProcess]:
    """Run the real service over a scripted engine."""
    command = gateway.command(gateway.Script(words=40, pace_s=0.005))
    with (
        tempfile.TemporaryDirectory(prefix="midstream-page-") as name,
        serving(Path(name), gateway.UNHURRIED, command=command) as server,
    ):
        yield server


async def _violations(browser: Browser, script: Path, scene: Scene) -> Measured:
    """Bring the page into a state, light and dark, and count axe's violations: elements, each with a rule."""
    broken: dict[str, list[str]] = {}
    schemes: tuple[Any, ...] = ("light", "dark")
    for scheme in schemes:
        async with peer() as made:
            context = await browser.new_context(
                viewport=DESKTOP, color_scheme=scheme, reduced_motion="reduce"
            )
            await context.add_init_script(path=script)
            chat = ChatPage(await context.new_page())
            await scene(chat, made)
            broken[scheme] = await violations(chat)
            await context.close()
    return Measured(
        label=f"axe violations: {scene.__name__.replace('_', ' ')}",
        value=sum(len(found) for found in broken.values()),
        readings={scheme: float(len(found)) for scheme, found in broken.items()},
        target=at_most(0),
        note="; ".join(sorted({line.partition(":")[0] for found in broken.values() for line in found})),
    )


if __name__ == "__main__":
    sys.exit(main())
