"""Talking on the page: a real Chromium hears a recording as its microphone, a real service understands it and speaks the reply."""

from __future__ import annotations

import re
import shutil
import subprocess
import wave
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, expect

from engine.scripted import ScriptedEngine
from tests.app.in_process_service import InProcessService, serving
from tests.browser.chat_page import ChatPage
from tests.browser.conftest import DESKTOP, Complaints, launched
from tests.browser.fake_server import FakeServer, PageConnection
from tests.browser.page_states import violations
from tests.browser.server_actions import delta, visit
from tests.server_process import serving as serving_process

needs_a_voice = pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="needs espeak-ng")
GRAMMAR = Path(__file__).parents[1] / "e2e" / "demo.jsgf"
SPEECH: dict[str, Any] = {"speech": "both", "speech_recognizer": str(GRAMMAR)}
REPLY = "One, two, three, four, five, six, seven, eight, nine and ten."
LEAD_S, REST_S = 2, 60
PATIENCE_MS = 120_000
"""A recording lasts as long as it lasts, and a busy machine is slow to understand it."""
MICROPHONE = "--use-fake-device-for-media-stream"
"""There is one. Chromium's shell without windows lends none, whatever it is told."""
LISTEN_IN = """
    const start = AudioBufferSourceNode.prototype.start;
    window.loudest = 0;
    AudioBufferSourceNode.prototype.start = function (...when) {
      for (const sample of this.buffer.getChannelData(0)) window.loudest = Math.max(window.loudest, sample);
      return start.apply(this, when);
    };
"""
VOLUME = """
    const createGain = AudioContext.prototype.createGain;
    AudioContext.prototype.createGain = function () {
      const node = createGain.call(this);
      window.volume = node.gain;
      return node;
    };
"""
OWN_RATE = """
    window.AudioContext = class extends AudioContext {
      constructor(options) {
        super(options ?? { sampleRate: 96_000 });
      }
    };
    const connect = AudioContext.prototype.createMediaStreamSource;
    let wasAsked = false;
    AudioContext.prototype.createMediaStreamSource = function (stream) {
      if (wasAsked) return connect.call(this, stream);
      wasAsked = true;
      throw new DOMException("The rates differ.", "NotSupportedError");
    };
"""
"""As Firefox, which connects a microphone only to a context of the device's own rate: here 96 kHz."""
PERMISSION_PROMPT = "navigator.permissions.query = async () => ({ state: 'prompt' })"
"""As browsers say that forget a permission with the page; else the sound may go on by itself."""
HEARD = """
    window.heard = 0;
    const marks = [];
    const sockets = new WeakSet();
    const { send } = WebSocket.prototype;
    WebSocket.prototype.send = function (data) {
      if (!sockets.has(this)) {
        sockets.add(this);
        this.addEventListener("message", ({ data: text }) => {
          if (typeof text === "string") marks.push(...(JSON.parse(text).marks ?? []));
        });
      }
      const { type, audio_ms: playedMs } = typeof data === "string" ? JSON.parse(data) : {};
      const { off = 0, len = 0 } = marks.findLast(({ end_ms: endMs }) => endMs <= playedMs) ?? {};
      if (type === "played") window.heard = Math.max(window.heard, off + len);
      return send.call(this, data);
    };
"""
"""Notes how much of the reply the page has reported as played."""
BEYOND = "(chars) => window.heard > chars"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def listening(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcessService]:
    """A service that hears and speaks."""
    folder = tmp_path_factory.mktemp("listening")
    async with serving(folder, ScriptedEngine(reply=REPLY), **SPEECH) as running:
        yield running


def recording(text: str, folder: Path) -> Path:
    """A microphone's sound in which somebody says this, once, and is silent then."""
    spoken, file = folder / "said.wav", folder / "microphone.wav"
    subprocess.run(["espeak-ng", "-v", "en-gb", "-w", str(spoken), text], check=True)
    with wave.open(str(spoken)) as source, wave.open(str(file), "wb") as target:
        target.setparams(source.getparams())
        silence = bytes(2 * source.getframerate())
        target.writeframes(silence * LEAD_S)
        target.writeframes(source.readframes(source.getnframes()))
        target.writeframes(silence * REST_S)
    return file


@asynccontextmanager
async def visitor(text: str, folder: Path) -> AsyncIterator[ChatPage]:
    """A visitor whose microphone hears a text being said."""
    audio_input = f"--use-file-for-fake-audio-capture={recording(text, folder)}%noloop"
    async with launched("chromium", options=[MICROPHONE, audio_input]) as browser:
        context = await browser.new_context(permissions=["microphone"])
        await context.add_init_script(LISTEN_IN + HEARD)
        yield ChatPage(await context.new_page())


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def whole() -> AsyncIterator[Browser]:
    """A browser with a microphone, which beeps."""
    async with launched("chromium", options=[MICROPHONE]) as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope="session")
async def context(whole: Browser, complaints: Complaints) -> AsyncIterator[BrowserContext]:
    """A visitor, who was not asked for the microphone so far; headless, the answer is no."""
    made = await whole.new_context(viewport=DESKTOP)
    complaints.watch(made)
    yield made
    await made.close()
    assert complaints.unexpected() == []


async def start_talking(chat: ChatPage, url: str) -> None:
    """Opens the page and presses the button."""
    await chat.open(url)
    await chat.page.get_by_role("button", name="Talk", exact=True).click()


@needs_a_voice
@pytest.mark.timeout(300)
async def test_words_appear_as_they_are_heard_and_the_reply_is_played(tmp_path: Path) -> None:
    """By the demo model, in a process of its own."""
    environ = {"MIDSTREAM_SPEECH": "both", "MIDSTREAM_SPEECH_RECOGNIZER": str(GRAMMAR)}
    with serving_process(tmp_path, environ) as server:
        async with visitor("What is seven plus eight?", tmp_path) as chat:
            await start_talking(chat, server.url)
            final = chat.page.locator(".voice-heard.final")
            await expect(final).to_have_text(re.compile("^what is .+ plus "), timeout=PATIENCE_MS)
            await expect(chat.questions).to_have_text([await final.inner_text()])
            await chat.page.wait_for_function(BEYOND, arg=3, timeout=PATIENCE_MS)
            await chat.ended()  # which it has only when the page has told that all was played
            assert await chat.client("() => window.loudest") > 0.1
            await expect(chat.page.locator(".voice-state")).to_have_text("Listening")
            await expect(chat.badge()).to_have_count(0)
            await chat.page.get_by_role("button", name="Talk", exact=True).click()
            await expect(chat.page.locator(".voice")).to_have_count(0)


@needs_a_voice
@pytest.mark.timeout(300)
async def test_stop_in_the_middle_of_a_spoken_count_keeps_the_words_that_were_heard(
    listening: InProcessService, tmp_path: Path
) -> None:
    """Where the microphone keeps its own rate."""
    async with visitor("Count from one to ten.", tmp_path) as chat:
        await chat.page.add_init_script(OWN_RATE)
        await start_talking(chat, listening.url)
        await chat.page.wait_for_function(BEYOND, arg=len("One, two"), timeout=PATIENCE_MS)
        assert await chat.last_reply() == REPLY
        await chat.stop.click()
        await expect(chat.badge()).to_have_text("Stopped")
        [(_, question), (_, kept)] = seen = await chat.seen()
        assert question.startswith("count from")
        assert kept.startswith("One, two,")
        assert len(kept) < len(REPLY)
        assert REPLY.startswith(f"{kept} ")
        await chat.reload()
        await chat.shows(seen)


@needs_a_voice
@pytest.mark.timeout(300)
async def test_after_a_reload_the_reply_is_written_on_and_a_press_has_it_spoken_on(
    listening: InProcessService, tmp_path: Path
) -> None:
    """From what was played: where the browser asks for the microphone anew."""
    async with visitor("Count from one to ten.", tmp_path) as chat:
        await start_talking(chat, listening.url)
        await chat.page.wait_for_function(BEYOND, arg=len("One, two"), timeout=PATIENCE_MS)
        await chat.page.add_init_script(PERMISSION_PROMPT)
        await chat.page.reload()
        await expect(chat.page.get_by_text("Replies are sent as text until you continue.")).to_be_visible()
        await expect(chat.text).to_have_text(REPLY)
        await expect(chat.stop).to_be_visible()
        await chat.page.get_by_role("button", name="Keep talking").click()
        await chat.page.wait_for_function(BEYOND, arg=0, timeout=PATIENCE_MS)
        assert await chat.client("() => window.heard") >= len("One, ")
        assert await chat.client("() => window.loudest") > 0.1


async def visit_with_microphone(chat: ChatPage, peer: FakeServer) -> PageConnection:
    """The page of a server that listens, which may use the microphone."""
    await chat.page.context.grant_permissions(["microphone"])
    return await visit(chat, peer, features=["audio"])


async def listened_to(chat: ChatPage, conn: PageConnection) -> str:
    """Presses the button, and has the peer listen; gives the conversation."""
    await chat.page.get_by_role("button", name="Talk", exact=True).click()
    return await begin_to_listen(conn)


async def begin_to_listen(conn: PageConnection, *, kind: str = "vad") -> str:
    requested = await conn.receive("audio.start")
    assert requested["turn_detection"]["type"] == kind
    await conn.answer(requested, "audio.started", stream=7)
    return str(requested["conversation_id"])


async def test_while_the_button_is_held_it_is_listened_and_what_was_said_is_sent_then(
    chat: ChatPage, peer: FakeServer, complaints: Complaints
) -> None:
    """By the keyboard, too; and the way to talk is remembered."""
    conn = await visit_with_microphone(chat, peer)
    place = await listened_to(chat, conn)
    await chat.page.get_by_label("Way of talking").select_option("Hold to talk")
    stopping = await conn.receive("audio.stop")
    await conn.answer(stopping, "audio.stopped", reason="stop")
    await begin_to_listen(conn, kind="none")
    hold = chat.page.get_by_role("button", name="Hold to talk")
    await expect(hold).to_be_focused()
    conn.sounds.clear()
    await chat.page.keyboard.down(" ")
    await expect(hold).to_have_attribute("aria-pressed", "true")
    await conn.wait_for_audio(10)
    assert conn.kept("audio.commit") == []
    await chat.page.keyboard.up(" ")
    assert (await conn.receive("audio.commit"))["conversation_id"] == place
    assert {sound[3] for sound in conn.sounds} == {7}
    complaints.expected = ["AudioContext"]  # which may not be heard before a press
    await chat.page.add_init_script(PERMISSION_PROMPT)
    await chat.page.reload()
    conn = await peer.conn(features=["audio"])
    await chat.page.get_by_role("button", name="Keep talking").click()
    await begin_to_listen(conn, kind="none")


async def test_a_server_without_a_voice_is_asked_for_text_and_another_tab_that_talks_there_is_named(
    chat: ChatPage, peer: FakeServer
) -> None:
    conn = await visit_with_microphone(chat, peer)
    await chat.page.get_by_role("button", name="Talk", exact=True).click()
    requested = await conn.receive("audio.start")
    assert requested["output"] == {"rate": 24_000}
    why = "`output` is not available: this server has no voice."
    await conn.refuse(requested, "bad_params", message=why)
    requested = await conn.receive("audio.start")
    assert "output" not in requested
    await conn.answer(requested, "audio.started", stream=7)
    await conn.send_frame("audio.stopped", reason="elsewhere", conversation_id=requested["conversation_id"])
    await expect(chat.page.get_by_text("in another tab or on another device now")).to_be_visible()
    talk = chat.page.get_by_role("button", name="Talk", exact=True)
    await expect(talk).to_have_attribute("aria-pressed", "false")


async def test_what_is_taken_back_is_never_shown(chat: ChatPage, peer: FakeServer) -> None:
    """A pause that was no end: the turn that began there comes and goes without a trace."""
    conn = await visit_with_microphone(chat, peer)
    place = await listened_to(chat, conn)
    where = {"conversation_id": place}
    guess = {"client_msg_id": "utterance_a.1", **where}
    await conn.send_frame("speech", state="started", at_ms=0, **where)
    await conn.accept(guess, turn="g", seq=1)
    await delta(conn, where, "Too early", turn="g", off=0, seq=2)
    await conn.send_frame("transcript", text="all", final=False, utterance_id="utterance_a", **where)
    await expect(chat.page.locator(".voice-heard")).to_have_text("all")
    await chat.client("() => new Promise((shown) => requestAnimationFrame(() => setTimeout(shown)))")
    await expect(chat.replies).to_have_count(0, timeout=1)
    await conn.finish(guess, turn="g", seq=3, reason="cancelled", chars=0, removed=True)
    message = {"client_msg_id": "utterance_a.2", **where}
    await conn.accept(message, turn="t", seq=4)
    await delta(conn, where, "In time", off=0, seq=5)
    await conn.send_frame("transcript", text="all of it", final=True, utterance_id="utterance_a", **where)
    await chat.until_shown("In time")
    await chat.shows([("You", "all of it"), ("Reply", "In time")])
    await expect(chat.page.get_by_text("Too early")).to_have_count(0)


async def test_a_reply_is_soft_while_somebody_speaks_over_it_and_a_noise_that_goes_on_is_forgotten(
    chat: ChatPage, peer: FakeServer
) -> None:
    await chat.page.add_init_script(VOLUME)
    conn = await visit_with_microphone(chat, peer)
    where = {"conversation_id": await listened_to(chat, conn)}
    await conn.send_frame(
        "audio.reply", turn_id="t", stream=1, format="pcm16", rate=24_000, from_ms=0, **where
    )
    for is_reported in (True, False):
        await conn.send_frame("speech", state="started", at_ms=0, **where)
        await chat.page.wait_for_function("() => window.volume.value < 0.3")
        if is_reported:
            await conn.send_frame("speech", state="stopped", at_ms=400, **where)
            await conn.send_frame("transcript", text="", final=True, utterance_id="utterance_a", **where)
        await chat.page.wait_for_function("() => window.volume.value > 0.9")


async def test_who_talks_does_not_translate(
    chat: ChatPage, peer: FakeServer, context: BrowserContext, complaints: Complaints
) -> None:
    complaints.expected = ["Failed to load resource"]  # the peer lists no models over HTTP
    await context.grant_permissions(["microphone"])
    models = [{"name": "scripted", "features": ["continue"]}]
    conn = await visit(chat, peer, features=["audio", "interpret"], models=models)
    await chat.page.get_by_role("button", name="Live translation").click()
    await expect(chat.page.get_by_label("Into")).to_be_visible()
    await listened_to(chat, conn)
    await expect(chat.page.get_by_label("Into")).to_have_count(0)
    await chat.page.get_by_role("button", name="Live translation").click()
    await conn.receive("audio.stop")
    await expect(chat.page.locator(".voice-heard")).to_have_count(0)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("", "This page may not use the microphone."),
        (
            "Object.defineProperty(navigator, 'mediaDevices', { value: undefined })",  # as browsers have it without HTTPS
            "Browsers give the microphone only to pages that come over HTTPS",
        ),
    ],
)
async def test_who_may_not_use_the_microphone_is_told_why(
    chat: ChatPage, peer: FakeServer, script: str, words: str
) -> None:
    await chat.page.add_init_script(script)
    await visit(chat, peer, features=["audio"])
    button = chat.page.get_by_role("button", name="Talk", exact=True)
    await button.click()
    await expect(chat.page.get_by_text(words)).to_be_visible()
    await expect(button).to_have_attribute("aria-pressed", "false")
    await expect(chat.page.locator(".voice")).to_have_count(0)


async def test_without_a_microphone_it_is_said(peer: FakeServer) -> None:
    async with launched("chromium") as browser:
        context = await browser.new_context(permissions=["microphone"])
        chat = ChatPage(await context.new_page())
        await visit(chat, peer, features=["audio"])
        await chat.page.get_by_role("button", name="Talk", exact=True).click()
        await expect(chat.page.get_by_text("No microphone was found.")).to_be_visible()


async def test_no_rule_of_axe_is_broken(
    chat: ChatPage, peer: FakeServer, context: BrowserContext, axe: str
) -> None:
    """In light and in dark, while the button has to be held."""
    await context.add_init_script(axe)
    await chat.page.add_init_script("localStorage.setItem('midstream.talk', 'hold')")
    conn = await visit_with_microphone(chat, peer)
    await chat.page.get_by_role("button", name="Talk", exact=True).click()
    where = {"conversation_id": await begin_to_listen(conn, kind="none")}
    await conn.send_frame("transcript", text="what is seven", final=False, utterance_id="u", **where)
    await expect(chat.page.locator(".voice-heard")).to_have_text("what is seven")
    found = []
    for scheme, width in (("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)):
        await chat.page.set_viewport_size({"width": width, "height": 800})
        await chat.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
        found += await violations(chat)
    assert found == []
