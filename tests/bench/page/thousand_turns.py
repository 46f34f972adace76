"""A conversation of a thousand turns on our page and on Open WebUI's: `python -m tests.bench.page.thousand_turns`.

A script types a question, presses Enter, reads nothing, and asks again when the reply has ended: two hours of talk
without the pauses. Both pages are served by the same scripted engine: ours over its own protocol, Open WebUI over chat
completions. Both are real programs in a real Chromium, with their default settings.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version as version_of
from pathlib import Path
from statistics import median
from time import monotonic

import msgspec
from playwright.sync_api import CDPSession, Page, expect, sync_playwright

from tests.bench.page import scripted_server
from tests.bench.report import RESULTS, Report, aligned, say
from tests.browser.conftest import DESKTOP, OPTIONS
from tests.chaos.gateway import UNHURRIED
from tests.clients import open_webui
from tests.clients.environments import NotInstallable, program_of
from tests.server_process import ServerProcess, serving

TURNS = 1_000
MARKS = (10, 100, 300, 1_000)
MINUTES = 10.0
PAGES = ("midstream", "open-webui")
LAST = 10
"""Turns whose median time to the first text is reported."""
LONG_MS = 50
"""Milliseconds from which browsers call a task long."""
PATIENCE_MS = 180_000
PROBE = """
(() => {
  const probe = { turn: 0, ended: 0, sentMs: 0, firstMs: 0, tasks: [] };
  window.probe = probe;
  new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) probe.tasks.push(entry.duration);
  }).observe({ type: "longtask", buffered: true });
  addEventListener("keydown", (event) => {
    if (event.key === "Enter") probe.sentMs = performance.now();
  }, true);
  let shown = false;
  let whole = false;
  probe.begin = (turn) => {
    probe.turn = turn;
    probe.firstMs = 0;
    shown = whole = false;
  };
  const look = (node) => {
    const text = node.textContent ?? "";
    if (!shown && text.includes(`R${probe.turn}.`)) {
      shown = true;
      requestAnimationFrame(() => { probe.firstMs = performance.now() - probe.sentMs; });
    }
    whole ||= shown && text.includes(`E${probe.turn}.`);
  };
  new MutationObserver((records) => {
    if (probe.ended === probe.turn) return;
    for (const record of records) {
      if (record.type === "characterData") look(record.target);
      else for (const node of record.addedNodes) look(node);
    }
    if (whole && document.querySelector(STOP) === null) probe.ended = probe.turn;
  }).observe(document, {
    subtree: true, childList: true, characterData: true, attributes: true, attributeFilter: ["hidden"],
  });
})();
"""
ENDED = "(turn) => window.probe.ended === turn && window.probe.firstMs > 0"
SEEN = """() => {
  const { tasks } = window.probe;
  window.probe.tasks = [];
  return [tasks, document.querySelectorAll("*").length];
}"""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """State after some turns; times and long tasks are those of the turns since the last mark.

    `cpu_ms`: of the page's main thread, per turn. `heap_mb`: of scripts, after a collection. `nodes`: all nodes in the
    browser, including those outside the document.
    """

    turns: int
    seconds: float
    first_text_ms: float
    long_tasks: int
    longest_ms: float
    blocked_ms: float
    cpu_ms: float
    heap_mb: float
    elements: int
    nodes: int


class ConversationRun(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation on one page. `turns`: how many fitted in the time."""

    page: str
    version: str
    turns: int
    stands: tuple[Checkpoint, ...]


class ChatSite(msgspec.Struct, frozen=True):
    """A page with a chat: its address, CSS of its message box, and the first steps there."""

    name: str
    version: str
    url: str
    box: str
    enter: Callable[[Page, str], None]


class Talker:
    """Types, and reads the page's figures."""

    def __init__(self, page: Page, place: ChatSite) -> None:
        self._page = page
        self._box = place.box
        self._session: CDPSession = page.context.new_cdp_session(page)
        self._session.send("Performance.enable", {"timeDomain": "threadTicks"})
        self._cpu_s = self._figures()["TaskDuration"]

    def ask(self, number: int) -> float:
        """Run one turn; return the milliseconds from the key to the frame that shows the first text."""
        begin = "([turn, box]) => { probe.begin(turn); document.querySelector(box).focus(); }"
        self._page.evaluate(begin, [number, self._box])
        self._page.keyboard.type(scripted_server.question(number))
        self._page.keyboard.press("Enter")
        self._page.wait_for_function(ENDED, arg=number, timeout=PATIENCE_MS)
        return float(self._page.evaluate("probe.firstMs"))

    def stand(self, turns: int, since: int, seconds: float, first_ms: Sequence[float]) -> Checkpoint:
        """Return the page's state, `since` so many turns."""
        spent = self._figures()["TaskDuration"]
        tasks, elements = self._page.evaluate(SEEN)
        self._session.send("HeapProfiler.collectGarbage")
        figures = self._figures()
        stand = Checkpoint(
            turns=turns,
            seconds=seconds,
            first_text_ms=median(first_ms[-LAST:]),
            long_tasks=len(tasks),
            longest_ms=max(tasks, default=0.0),
            blocked_ms=sum(task - LONG_MS for task in tasks),
            cpu_ms=1000 * (spent - self._cpu_s) / (turns - since),
            heap_mb=figures["JSHeapUsedSize"] / 2**20,
            elements=elements,
            nodes=int(figures["Nodes"]),
        )
        self._page.evaluate(SEEN)  # the collection's own task does not count
        self._cpu_s = self._figures()["TaskDuration"]
        return stand

    def _figures(self) -> dict[str, float]:
        metrics = self._session.send("Performance.getMetrics")["metrics"]
        return {one["name"]: one["value"] for one in metrics}


def run_conversation(place: ChatSite, turns: int, minutes: float) -> ConversationRun:
    """Talk so long, or for so many turns. Raises FileNotFoundError if there is no Chromium."""
    with _page() as page:
        place.enter(page, place.url)
        talker = Talker(page, place)
        stands: list[Checkpoint] = []
        first_ms: list[float] = []
        began = monotonic()
        while len(first_ms) < turns:
            first_ms.append(talker.ask(len(first_ms) + 1))
            done, seconds = len(first_ms), monotonic() - began
            out = seconds > 60 * minutes
            if done in MARKS or done == turns or out:
                since = stands[-1].turns if stands else 0
                stands.append(talker.stand(done, since, seconds, first_ms))
                say(f"{place.name}: {stands[-1]}")
            if out:
                break
    return ConversationRun(page=place.name, version=place.version, turns=len(first_ms), stands=tuple(stands))


@contextmanager
def _page() -> Iterator[Page]:
    path = shutil.which("chromium")
    if path is None:
        raise FileNotFoundError("there is no `chromium` on PATH (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=OPTIONS)
        try:
            page = browser.new_page(viewport=DESKTOP)
            page.set_default_timeout(PATIENCE_MS)
            yield page
        finally:
            browser.close()


@contextmanager
def gateway(folder: Path) -> Iterator[ServerProcess]:
    """The service that both pages talk to in the end."""
    environ = UNHURRIED | {"MIDSTREAM_MODEL": scripted_server.MODEL}
    with serving(folder, environ, command=scripted_server.COMMAND) as server:
        yield server


def ours(server: ServerProcess) -> ChatSite:
    """Return Midstream's own page."""
    stop = "#stop:not([hidden])"

    def enter(page: Page, url: str) -> None:
        page.add_init_script(PROBE.replace("STOP", repr(stop)))
        page.goto(url)
        expect(page.locator("#connection[data-state=connected]")).to_be_attached(timeout=PATIENCE_MS)

    return ChatSite("Midstream", version_of("midstream"), server.url, "#message", enter)


def theirs(url: str) -> ChatSite:
    """Return Open WebUI's page."""

    def enter(page: Page, url: str) -> None:
        open_webui.sign_up(page, url)
        page.add_init_script(PROBE.replace("STOP", repr('button[aria-label="Stop"]')))
        page.goto(f"{url}/?models={scripted_server.MODEL}")
        expect(page.locator("#chat-input")).to_be_visible(timeout=PATIENCE_MS)

    return ChatSite("Open WebUI", open_webui.version(), url, "#chat-input", enter)


def table(talks: Sequence[ConversationRun]) -> str:
    """Return the figures as text, each mark of one page beside that of the other."""
    rows: list[tuple[str, ...]] = [("after", "page", "first text, ms", "long tasks", "blocked, s", "longest, ms", "processor a turn, ms", "heap, MB", "elements")]  # fmt: skip
    for turns in sorted({stand.turns for one in talks for stand in one.stands}):
        for one in talks:
            rows += [_row(one.page, stand) for stand in one.stands if stand.turns == turns]
    return aligned(rows, numbers=True)


def _row(page: str, stand: Checkpoint) -> tuple[str, ...]:
    blocked_s = f"{stand.blocked_ms / 1000:,.1f}"
    return (
        *(f"{stand.turns:,} turns", page, f"{stand.first_text_ms:,.0f}", f"{stand.long_tasks:,}", blocked_s),
        *(f"{stand.longest_ms:,.0f}", f"{stand.cpu_ms:,.0f}", f"{stand.heap_mb:,.1f}", f"{stand.elements:,}"),
    )


def measure(turns: int, minutes: float, only: Sequence[str]) -> list[ConversationRun]:
    """Talk on each page, one after the other. Raises NotInstallable."""
    talks = []
    with tempfile.TemporaryDirectory(prefix="midstream-turns-") as name, gateway(Path(name)) as server:
        if "open-webui" in only:  # first, because it may fail to start
            (folder := Path(name) / "webui").mkdir()
            with open_webui.running(program_of("openwebui", "open-webui", say), [server], folder) as url:
                talks.append(run_conversation(theirs(url), turns, minutes))
        if "midstream" in only:
            talks.insert(0, run_conversation(ours(server), turns, minutes))
    return talks


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.page.thousand_turns", description=__doc__)
    parser.add_argument("--turns", type=int, default=TURNS, help=f"how many ({TURNS})")
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help=f"of each page, at most ({MINUTES:.0f})"
    )
    parser.add_argument("--only", nargs="+", choices=PAGES, default=PAGES, help="which pages (both)")
    parser.add_argument(
        "--out", type=Path, help="file for results (docs/bench/thousand_turns.json, of a whole run)"
    )
    options = parser.parse_args()
    report = Report(details={"minutes": options.minutes})
    try:
        talks = report.details["talks"] = measure(options.turns, options.minutes, options.only)
    except NotInstallable as why:
        print(f"Open WebUI could not be installed: {why}")
        return 2
    report.details["load_after"] = round(os.getloadavg()[0], 2)
    print(f"{report.machine}\n{table(talks)}")
    whole = options.turns == TURNS and len(options.only) == len(PAGES)
    report.write(options.out or (RESULTS / "thousand_turns.json" if whole else None))
    return 0


if __name__ == "__main__":
    sys.exit(main())
