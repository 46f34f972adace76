"""Takes the pictures of the docs, of the real page on a real service: `python -m tests.browser.screenshots`.

`docs/pictures` gets the page on a desktop and a phone, light and dark, and a moving picture: a reply is stopped, the page is
loaded again, the reply goes on. A scripted engine answers, so that the same pictures come of the same page.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.async_api import Browser, Page, ViewportSize, async_playwright, expect

from engine.scripted import Call, ScriptedEngine, Step, Thought, words_of
from tests.app.in_process_service import InProcessService, serving
from tests.browser.chat_page import ChatPage
from tests.browser.conftest import OPTIONS

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
SCREENS: dict[str, dict[str, Any]] = {
    "desktop": {"viewport": {"width": 1280, "height": 960}, "device_scale_factor": 1.5},
    "phone": {
        "viewport": {"width": 390, "height": 844},
        "device_scale_factor": 2,
        "has_touch": True,
        "is_mobile": True,
    },
}
MOVING = ViewportSize(width=960, height=600)
FRAME_MS = 120
MOST_BYTES = 1_500_000
QUALITY = 82
EARLIER = ("Why is the sky blue?", "A name for a small boat", "Draft a letter to the landlord")
QUESTION = "How long does it take to sort a million numbers, and how would I do it?"
ANSWER: tuple[Step, ...] = (
    *(Thought(word) for word in words_of("They want an estimate and code. Let me measure it first.")),
    Call("measure", '{"numbers": 1000000}'),
)
REST = """About **0.2 seconds** in Python, in one thread. Its `sorted` merges runs that are in order already, so it \
needs $O(n \\log n)$ comparisons at most:

```python
from random import random

numbers = [random() for _ in range(1_000_000)]
numbers.sort()  # in place, and stable
```

| Order before | Comparisons | Time |
|---|--:|--:|
| random | 18.7 million | 0.21 s |
| in order already | 1.0 million | 0.02 s |

1. `sort` changes the list itself.
2. `sorted` makes a new one.
"""
STORY = (
    "Once there was a lighthouse that nobody had asked for. It stood at the end of a long grey pier, and every evening it "
    "counted the boats that came home. One evening there was a boat too few. So the lighthouse did what no lighthouse had "
    "done before: it turned its light around, and looked along the shore. There, between two rocks, lay the smallest boat "
    "of all. Its sail was torn, and its skipper was asleep. “Wake up,” said the lighthouse, in the only way it knew, and the "
    "light went on and off until the skipper rubbed her eyes."
)


def measure(numbers: int) -> str:
    """Sort some random numbers, and tell how long it took."""
    return f"{numbers} numbers: 0.21 s"


@asynccontextmanager
async def service(pace_s: float) -> AsyncIterator[InProcessService]:
    """A service that answers what the pictures show."""
    with tempfile.TemporaryDirectory(prefix="midstream-pictures-") as folder:
        engine = ScriptedEngine(context_tokens=8192, pace_s=pace_s)
        options: dict[str, Any] = {"tools": ("tests.browser.screenshots:measure",), "speech": "auto"}
        async with serving(Path(folder), engine, **options) as running:
            yield running


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """A browser without a window."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=shutil.which("chromium"), args=OPTIONS)
        yield browser
        await browser.close()


async def stills(browser: Browser, folder: Path) -> None:
    """The page with a conversation, on each screen in each theme."""
    async with service(0.0) as running:
        context = await browser.new_context()
        chat = ChatPage(await context.new_page())
        await chat.open(running.url)
        for question in EARLIER:
            running.engine.script("Gladly.")
            await chat.ask(question)
            await chat.page.get_by_role("button", name="New conversation").click()
            await expect(chat.replies).to_have_count(0)
        running.engine.script(ANSWER)
        running.engine.script(words_of(REST))
        await chat.type(QUESTION)
        await chat.until_shown("makes a new one")
        await chat.ended()
        kept = await context.storage_state()
        address = chat.page.url
        await context.close()
        for name, screen in SCREENS.items():
            for scheme in ("light", "dark"):
                shown = await shot(browser, address, screen | {"color_scheme": scheme, "storage_state": kept})
                Image.open(io.BytesIO(shown)).save(
                    folder / f"{name}-{scheme}.webp", quality=QUALITY, method=6
                )


async def shot(browser: Browser, address: str, screen: dict[str, Any]) -> bytes:
    """One picture of a conversation."""
    context = await browser.new_context(**screen)
    chat = ChatPage(await context.new_page())
    await chat.open(address)
    await chat.until_shown("makes a new one")
    for made in (".hljs-keyword", "math"):
        await expect(chat.page.locator(f".prose {made}").first).to_be_attached()
    picture = await chat.page.screenshot()
    await context.close()
    return picture


async def moving(browser: Browser, file: Path) -> None:
    """Stop, reload, Continue, as one moving picture."""
    async with service(0.15) as running:
        context = await browser.new_context(viewport=MOVING, color_scheme="light")
        chat = ChatPage(await context.new_page())
        await chat.open(running.url)
        words = words_of(STORY)
        running.engine.script(words)
        film = Film(chat.page)
        await chat.box.press_sequentially("Tell me a story about a lighthouse.", delay=20)
        await film.take(1)
        await chat.box.press("Enter")
        await film.until(chat, "nobody had asked")
        await film.until(chat, "boat too few")
        await chat.stop.hover()
        await film.take(2)
        await chat.stop.click()
        await expect(chat.badge()).to_have_text("Stopped")
        await film.take(10)
        stopped = await chat.last_reply()
        await chat.page.reload()
        await film.take(1)
        await expect(chat.replies.last.locator(".prose")).to_have_text(stopped)
        await chat.connected()
        await film.take(10)
        word_count = len(words_of(stopped))
        running.engine.script(words[word_count:])
        onward = chat.page.get_by_role("button", name="Continue")
        await onward.hover()
        await film.take(3)
        await onward.click()
        await film.until(chat, "rubbed her eyes")
        await chat.ended()
        await film.take(14)
        film.save(file)
        await context.close()


class Film:
    """Pictures of a page, one after the other."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._frames: list[Image.Image] = []

    async def take(self, count: int) -> None:
        """Take a picture that is shown for so many frames."""
        picture = Image.open(io.BytesIO(await self._page.screenshot())).convert("RGB")
        self._frames += [picture] * count

    async def until(self, chat: ChatPage, text: str) -> None:
        """Take pictures at their pace until the reply has come so far."""
        while text not in await chat.last_reply():
            await self.take(1)
            await self._page.wait_for_timeout(FRAME_MS)

    def save(self, file: Path) -> None:
        """Write all of them. Raises ValueError where that is too large for a page."""
        first, *others = self._frames
        first.save(file, save_all=True, append_images=others, duration=FRAME_MS, loop=0, quality=60, method=4)
        if (size := file.stat().st_size) > MOST_BYTES:
            raise ValueError(f"{file.name} has {size:,} bytes, and {MOST_BYTES:,} at most are wanted")


async def take(folder: Path) -> None:
    """Take all pictures, into a folder that is there."""
    async with chromium() as browser:
        await stills(browser, folder)
        await moving(browser, folder / "stop.webp")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.browser.screenshots", description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where they go (docs/pictures)")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(take(options.folder))
