"""What a user does on the pages of the examples, which all have the same words on them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.async_api import Locator, Page, expect

from engine.scripted import ScriptedEngine, words_of
from tests.docs.documents import ROOT

NUMBERS = words_of(" ".join(str(number) for number in range(1, 400)))


def counting(replies: int = 4) -> ScriptedEngine:
    """An engine whose replies count, calmly."""
    engine = ScriptedEngine(context_tokens=8192, pace_s=0.05)
    for _ in range(replies):
        engine.script(NUMBERS)
    return engine


def installed(example: str, checkout: Path, edit: Callable[[str], str]) -> Path:
    """A copy of an example, with its package.json edited and what it needs installed by npm."""
    if shutil.which("npm") is None:
        pytest.skip("NOT TESTED: there is no npm here")
    (checkout / "app").symlink_to(ROOT / "app")
    ours = shutil.ignore_patterns("node_modules", "www", "android", "ios", "built")
    made = shutil.copytree(ROOT / "examples", checkout / "examples", symlinks=True, ignore=ours) / example
    package = made / "package.json"
    package.write_text(edit(package.read_text()))
    install = ("npm", "install", "--prefer-offline", "--no-audit", "--no-fund")
    ran = subprocess.run(install, cwd=made, capture_output=True, text=True, check=False)
    if ran.returncode:
        pytest.skip(f"NOT TESTED: npm could not install it: {ran.stderr[-300:]}")
    return made


class Chat:
    """One visit to a page."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.status = page.get_by_role("status")
        self.messages = page.locator("main p")

    @property
    def reply(self) -> Locator:
        return self.page.locator(".assistant").last

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    async def connected(self) -> None:
        await expect(self.status).to_have_text("")

    async def send(self, text: str) -> None:
        await self.page.get_by_label("Message").fill(text)
        await self.button("Send").click()

    async def counts_to(self, number: int) -> None:
        await expect(self.reply).to_contain_text(f" {number} ")

    async def stop(self) -> str:
        """Stops the reply; gives what is to be seen of it."""
        shown = await self.reply.inner_text()
        await self.button("Stop").click()
        await expect(self.button("Stop")).to_be_hidden()
        kept = await self.reply.inner_text()
        assert kept.startswith(shown)
        assert "".join(NUMBERS).startswith(kept)
        return kept

    async def has(self, *messages: str) -> None:
        await expect(self.messages).to_have_text([message.rstrip() for message in messages])
