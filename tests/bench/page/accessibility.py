"""Accessibility violations in each state of the page, light and dark: axe-core, WCAG 2.2 AA and best practices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.async_api import Browser

from tests.bench.engine.report import Measured, Target
from tests.browser.chat_page import ChatPage
from tests.browser.conftest import DESKTOP
from tests.browser.fake_server import peer
from tests.browser.page_states import SCENES, Scene, violations

SCHEMES = ("light", "dark")


async def rows(browser: Browser, script: Path, *, scenes: tuple[Scene, ...] = SCENES) -> list[Measured]:
    """Bring the page into each state, and count axe's violations."""
    return [
        figure(scene.__name__, {scheme: await _broken(browser, script, scene, scheme) for scheme in SCHEMES})
        for scene in scenes
    ]


def figure(state: str, broken: dict[str, list[str]]) -> Measured:
    """Make a row of a state's violations, by scheme: elements, each with a rule."""
    return Measured(
        label=f"axe violations: {state.replace('_', ' ')}",
        value=sum(len(found) for found in broken.values()),
        readings={scheme: len(found) for scheme, found in broken.items()},
        target=Target(0, at_most=True),
        note="; ".join(sorted({line.partition(":")[0] for found in broken.values() for line in found})),
    )


async def _broken(browser: Browser, script: Path, scene: Scene, scheme: Any) -> list[str]:
    async with peer() as made:
        context = await browser.new_context(viewport=DESKTOP, color_scheme=scheme, reduced_motion="reduce")
        await context.add_init_script(path=script)
        chat = ChatPage(await context.new_page())
        await scene(chat, made)
        found = await violations(chat)
        await context.close()
    return found
