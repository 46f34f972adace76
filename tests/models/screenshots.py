"""Ten turns with SmolLM2 on the page, and the README's picture of the last ones: `python -m tests.models.screenshots`.

The model draws its words at random, so what is said differs each time. What the page has to show does not.
"""

from __future__ import annotations

import argparse
import asyncio
import io
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
QUESTIONS = (
    "How do tides come about?",
    "Tell me a story about a lighthouse keeper and her cat.",
    "Name three colors.",
    "What do lighthouse keepers do all day?",
    "What rhymes with light?",
    "How deep is the sea?",
    "What is the capital of Spain?",
    "Translate “good morning” into French.",
    "Write a haiku about the sea.",
)
LONGEST = 120
"""Tokens of a reply, which a visitor sets: so small a model does not always find an end."""
PATIENCE_MS = 180_000


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
    """Ask nine questions, and edit one of them."""
    await chat.open(url)
    await chat.page.get_by_role("button", name="Settings", exact=True).click()
    await chat.page.get_by_label("Maximum reply length (tokens)").fill(str(LONGEST))
    await chat.page.get_by_role("button", name="Save").click()
    for question in QUESTIONS[:7]:
        await ask(chat, question)
    await edit_last(chat, "What is the capital of France?")
    for question in QUESTIONS[7:]:
        await ask(chat, question)


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
