"""The page speaks English, German and Chinese: every sentence of it, and what the user chose."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
from playwright.async_api import expect

from tests.browser.chat_page import ChatPage
from tests.browser.fake_server import PAGE, FakeServer
from tests.browser.server_actions import visit

TEXT_ATTRIBUTES = {"aria-label", "title", "placeholder"}
CATALOG = PAGE / "ui" / "words" / "sentences.js"
GERMAN = "Object.defineProperty(navigator, 'languages', { get: () => ['de-CH', 'en'] })"
_SENTENCE = re.compile(r'\bt\(\s*"((?:[^"\\]|\\.)*)"')
_TEXT = r'"(?:[^"\\]|\\.)*"'
_ENTRY = re.compile(rf"^  ({_TEXT}): (\[{_TEXT}, {_TEXT}\]),$", re.MULTILINE)


class Sentences(HTMLParser):
    """What people read or hear of a document."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found |= {value for name, value in attrs if name in TEXT_ATTRIBUTES and value}

    def handle_data(self, data: str) -> None:
        if sentence := " ".join(data.split()):
            self.found.add(sentence)


def sentences() -> set[str]:
    parser = Sentences()
    for document in ("index.html", "shared.html"):
        parser.feed((PAGE / document).read_text())
    sources = [*(PAGE / "ui").rglob("*.js"), *PAGE.glob("*.js")]
    spoken = {
        found for source in sources if source != CATALOG for found in _SENTENCE.findall(source.read_text())
    }
    return parser.found | spoken


def entries() -> dict[str, list[str]]:
    return {json.loads(key): json.loads(value) for key, value in _ENTRY.findall(CATALOG.read_text())}


async def test_every_sentence_has_its_translations() -> None:
    """With the same values; and none has one that nobody says."""
    spoken = {sentence for sentence in sentences() if re.search("[A-Za-z]", sentence)}
    assert set(entries()) == spoken
    assert len(CATALOG.read_text().splitlines()) == len(spoken) + 3
    for english, translations in entries().items():
        values = sorted(re.findall(r"\{\w+\}", english))
        assert [sorted(re.findall(r"\{\w+\}", one)) for one in translations] == [values] * 2, english


@pytest.mark.parametrize(
    ("script", "spoken"),
    [
        ("", ["en", "Say something.", "Write a message", "Connected", "English → Chinese", "Any language → German"]),
        (GERMAN, ["de", "Sag etwas.", "Nachricht schreiben", "Verbunden", "Englisch → Chinesisch", "Jede Sprache → Deutsch"]),
    ],
)  # fmt: skip
async def test_a_visitor_is_spoken_to_in_the_browsers_language(
    chat: ChatPage, peer: FakeServer, script: str, spoken: list[str]
) -> None:
    """A live translation is called by its languages: the server says which titles stand for some."""
    language, heading, placeholder, connected, *named = spoken
    row = {"updated_at": 1, "messages": 2}
    peer.listed = [
        row | {"conversation_id": source, "title": f"{source} → {target}"} | {"interprets": languages}
        for languages in ({"source": "en", "target": "zh"}, {"source": "auto", "target": "de"})
        for source, target in [languages.values()]
    ]
    chats = ["old → new", "en → zh"]
    peer.listed += [row | {"conversation_id": title[:3], "title": title} for title in chats]
    await chat.page.add_init_script(script)
    await visit(chat, peer)
    await expect(chat.page.locator("html")).to_have_attribute("lang", language)
    await expect(chat.page.get_by_role("heading", name=heading)).to_be_visible()
    await expect(chat.box.or_(chat.page.get_by_label("Deine Nachricht"))).to_have_attribute(
        "placeholder", placeholder
    )
    await expect(chat.page.get_by_text(connected, exact=True)).to_be_attached()
    await expect(chat.page.locator("#listed .name")).to_have_text([*named, *chats])


async def test_a_language_is_chosen_and_what_was_written_stays(chat: ChatPage, peer: FakeServer) -> None:
    await chat.page.goto(peer.url)
    await peer.conn()
    await chat.box.fill("half a sent")
    await chat.page.get_by_role("button", name="Settings", exact=True).click()
    await chat.page.get_by_label("Language").select_option(label="中文")
    await chat.page.get_by_role("button", name="Save").click()
    await peer.conn()
    await expect(chat.page.get_by_label("你的消息")).to_have_value("half a sent")
    await expect(chat.page.locator("html")).to_have_attribute("lang", "zh")
    await chat.page.get_by_role("button", name="设置", exact=True).click()
    await chat.page.get_by_label("语言").select_option("")
    await chat.page.get_by_role("button", name="保存").click()
    await peer.conn()
    await expect(chat.box).to_have_value("half a sent")
