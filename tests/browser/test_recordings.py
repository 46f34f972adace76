"""Dictation and read-aloud of other pages: what a browser's `MediaRecorder` makes is transcribed, what is spoken it can play."""

from __future__ import annotations

from typing import Any

import pytest

from tests.app.in_process_service import InProcessService
from tests.browser.chat_page import ChatPage
from tests.browser.test_voice import listening, needs_a_voice

__all__ = ["listening"]  # a fixture
pytestmark = needs_a_voice

TEXT = "Tell me a story about a lighthouse."
RECORD = """
    async ({ text, type, name }) => {
      const asked = { model: "tts-1", voice: "alloy", input: text, speed: 0.8 };
      const headers = { "Content-Type": "application/json" };
      const spoken = await fetch("/v1/audio/speech", { method: "POST", headers, body: JSON.stringify(asked) });
      const context = new AudioContext();
      const buffer = await context.decodeAudioData(await spoken.arrayBuffer());
      const source = new AudioBufferSourceNode(context, { buffer });
      const microphone = new MediaStreamAudioDestinationNode(context);
      source.connect(microphone);
      const recorder = new MediaRecorder(microphone.stream, { mimeType: type });
      const parts = [];
      recorder.ondataavailable = ({ data }) => parts.push(data);
      const stopped = new Promise((resolve) => (recorder.onstop = resolve));
      recorder.start();
      source.onended = () => recorder.stop();
      source.start();
      await stopped;
      const form = new FormData();
      form.append("file", new Blob(parts, { type }), name);
      form.append("model", "whisper-1");
      const heard = await fetch("/v1/audio/transcriptions", { method: "POST", body: form });
      return [spoken.headers.get("Content-Type"), buffer.duration, heard.status, await heard.json()];
    }
"""


@pytest.mark.parametrize(
    ("kind", "name"),
    [("audio/webm; codecs=opus", "Recording.webm"), ("audio/mp4; codecs=opus", "Recording.mp4")],
)
async def test_what_a_browser_records_is_transcribed(
    kind: str, name: str, chat: ChatPage, listening: InProcessService
) -> None:
    await chat.open(listening.url)
    reported: Any = await chat.client(RECORD, {"text": TEXT, "type": kind, "name": name})
    media_type, seconds, status, received = reported
    assert (media_type, status) == ("audio/mpeg", 200)
    assert seconds > 1
    assert received["text"].lower().rstrip(".") == TEXT.lower().rstrip(".")
