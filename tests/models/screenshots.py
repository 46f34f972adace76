"""Ten turns with SmolLM2 on the page, and the README's picture of the last ones: `python -m tests.models.screenshots`.

The model draws its words at random, so what is said differs each time. What the page has to show does not.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.async_api import Browser, ViewportSize, expect

from tests.browser.chat_page import UNDER_WAY, ChatPage
from tests.browser.conftest import launched
from tests.models.conftest import CACHE
from tests.server_process import ServerProcess, serving

FILE = Path(__file__).parents[2] / "docs" / "pictures" / "smollm2.png"
SCREEN = ViewportSize(width=1200, height=800)
MOST_BYTES = 250_000
FIRST = "How do tides come about?"
LONGEST = 120
"""Tokens of a reply, which a visitor sets: so small a model does not always find an end."""
PATIENCE_MS = 180_000
SOME_WORDS = re.compile(r"\w \w")


@contextmanager
def service(folder: Path) -> Iterator[ServerProcess]:
    """`midstream serve --model smollm2` with conversations of its own."""
    data = folder / "data"
    data.mkdir()
    (CACHE / "models").mkdir(parents=True, exist_ok=True)
    (data / "models").symlink_to(CACHE / "models")
    with serving(folder, command=("app", "serve", "--model", "smollm2")) as server:
        yield server


async def ten_turns(chat: ChatPage, url: str) -> None:
    """Talk with a model: Stop, Continue, an edit, another reply, a title, reloads. Raises AssertionError."""
    await chat.open(url)
    await chat.page.get_by_role("button", name="Settings", exact=True).click()
    await chat.page.get_by_label("Maximum reply length (tokens)").fill(str(LONGEST))
    await chat.page.get_by_role("button", name="Save").click()
    await ask(chat, FIRST)
    await expect(chat.page.locator("#title")).not_to_have_text(FIRST, timeout=PATIENCE_MS)
    title = await chat.page.locator("#title").inner_text()
    await stop_and_continue(chat, "Tell me a story about a lighthouse keeper and her cat.")
    await ask(chat, "Name three colors.")
    await reload_in_the_middle(chat, "What do lighthouse keepers do all day?")
    await ask(chat, "What is the capital of Spain?")
    await edit_last(chat, "What is the capital of France?")
    await chat.replies.last.hover()
    await chat.replies.last.get_by_role("button", name="Regenerate this reply").click()
    await expect(chat.page.get_by_label("Version 2 of 2")).to_have_count(2)
    await whole(chat)
    await ask(chat, "Translate “good morning” into French.")
    await ask(chat, "Write a haiku about the sea.")
    seen = await chat.seen()
    await chat.page.reload()
    await chat.connected()
    await chat.shows(seen)
    await expect(chat.page.locator("#title")).to_have_text(title)
    await expect(chat.conversations).to_have_text([title])


async def whole(chat: ChatPage) -> None:
    """Wait for the end of the reply, which has words and was not stopped."""
    await expect(chat.page.locator(UNDER_WAY)).to_have_count(0, timeout=PATIENCE_MS)
    assert await chat.last_reply()
    assert await chat.badge().all_inner_texts() in ([], ["Length limit reached"])


async def ask(chat: ChatPage, text: str) -> None:
    count = await chat.replies.count()
    await chat.type(text)
    await expect(chat.replies).to_have_count(count + 1)
    await whole(chat)


async def stop_and_continue(chat: ChatPage, text: str) -> None:
    """Two turns: the second one continues the reply that was stopped in the first one."""
    await chat.type(text)
    await expect(chat.text).to_contain_text(SOME_WORDS, timeout=PATIENCE_MS)
    await chat.stop.click()
    await expect(chat.badge()).to_have_text("Stopped")
    stopped = await chat.last_reply()
    count = await chat.replies.count()
    await chat.page.get_by_role("button", name="Continue", exact=True).click()
    await whole(chat)
    longer = await chat.last_reply()
    assert longer.startswith(stopped.rstrip())
    assert len(longer) > len(stopped)
    await expect(chat.replies).to_have_count(count)


async def reload_in_the_middle(chat: ChatPage, text: str) -> None:
    """The page is loaded again while a reply is written, and shows all of it."""
    count = await chat.replies.count()
    await chat.type(text)
    await expect(chat.replies).to_have_count(count + 1)
    await expect(chat.text).to_contain_text(SOME_WORDS, timeout=PATIENCE_MS)
    started = await chat.last_reply()
    await chat.page.reload()
    await chat.until_shown(started)
    await whole(chat)
    await expect(chat.replies).to_have_count(count + 1)


async def edit_last(chat: ChatPage, text: str) -> None:
    last = chat.page.locator(".message.user").last
    await last.hover()
    await last.get_by_role("button", name="Edit this message").click()
    box = chat.page.get_by_label("Your message, edited")
    await box.fill(text)
    await box.press("Enter")
    await expect(chat.questions.last).to_have_text(text)
    await whole(chat)
    await expect(chat.page.get_by_label("Version 2 of 2")).to_be_visible()


async def talked(browser: Browser, url: str) -> bytes:
    """Return a PNG of the page after ten turns."""
    context = await browser.new_context(viewport=SCREEN, color_scheme="light")
    chat = ChatPage(await context.new_page())
    await ten_turns(chat, url)
    picture = await chat.page.screenshot()
    await context.close()
    return picture


def save(picture: bytes, file: Path) -> None:
    """Write a PNG of few colors. Raises ValueError where that is too large for a page."""
    few = Image.open(io.BytesIO(picture)).convert("RGB").quantize(128)
    few.save(file, optimize=True)
    if (size := file.stat().st_size) > MOST_BYTES:
        raise ValueError(f"{file.name} has {size:,} bytes, and {MOST_BYTES:,} at most are wanted")


async def take(file: Path) -> None:
    """Talk, and take the picture."""
    with tempfile.TemporaryDirectory(prefix="midstream-picture-") as folder, service(Path(folder)) as server:
        async with launched("chromium-headless-shell", "chromium") as browser:
            save(await talked(browser, server.url), file)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.models.screenshots", description=__doc__)
    parser.add_argument("--file", type=Path, default=FILE, help="where it goes (docs/pictures/smollm2.png)")
    asyncio.run(take(parser.parse_args().file))
