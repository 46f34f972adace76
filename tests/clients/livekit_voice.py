"""LiveKit's plugin for OpenAI with sound: two spoken turns, the second interrupted by speech and truncated to what was played."""

import asyncio
import json
import os
from pathlib import Path

from livekit import rtc
from livekit.plugins.openai.realtime import RealtimeModel

RATE = 24_000
PART = RATE // 25 * 2


async def listen(session, waiting):
    """A microphone: what waits, or silence, as fast as it is spoken."""
    while True:
        part = bytes(waiting[:PART]).ljust(PART, b"\0")
        del waiting[:PART]
        session.push_audio(
            rtc.AudioFrame(data=part, sample_rate=RATE, num_channels=1, samples_per_channel=PART // 2)
        )
        await asyncio.sleep(0.04)


class Ears:
    """What a session is told of."""

    def __init__(self, session):
        self.generations, self.heard, self.speech = asyncio.Queue(), asyncio.Queue(), asyncio.Event()
        session.on("generation_created", self.generations.put_nowait)
        session.on("input_speech_started", lambda _: self.speech.set())
        session.on(
            "input_audio_transcription_completed",
            lambda done: done.is_final and self.heard.put_nowait(done.transcript),
        )


async def reply(session, ears, on_sound=None):
    """What is replied to what is said; where speech interrupts it, it is truncated to what was played."""
    heard = await ears.heard.get()
    generation = await ears.generations.get()
    ears.speech.clear()
    loop = asyncio.get_running_loop()
    reported = {"heard": heard, "said": "", "ms": None, "bytes": 0}
    async for message in generation.message_stream:
        began = None
        async for frame in message.audio_stream:
            began = began or loop.time()
            reported["bytes"] += len(frame.data) * 2
            if on_sound is not None and reported["bytes"] > on_sound[0]:
                on_sound[1]()
                on_sound = None
        if ears.speech.is_set():
            reported["ms"] = int(min(loop.time() - began, reported["bytes"] / 2 / RATE) * 1000)
            session.truncate(message_id=message.message_id, modalities=["audio"], audio_end_ms=reported["ms"])
        reported["said"] = "".join([text async for text in message.text_stream])
    return reported


async def main():
    """Reads OPENAI_BASE_URL, OPENAI_API_KEY, and SPOKEN: a folder of what is said."""
    waiting = bytearray()

    def speak(name):
        waiting.extend(Path(os.environ["SPOKEN"], f"{name}.pcm").read_bytes())

    model = RealtimeModel(model="midstream-demo")
    session = model.session()
    failures = []
    session.on("error", failures.append)
    ears = Ears(session)
    microphone = asyncio.create_task(listen(session, waiting))
    speak("name")
    print(json.dumps({"did": "first"} | await reply(session, ears)))
    speak("story")
    interruption = (RATE * 2 * 6 // 5, lambda: speak("again"))
    print(json.dumps({"did": "interrupted"} | await reply(session, ears, interruption)))
    print(json.dumps({"did": "again"} | await reply(session, ears)))
    microphone.cancel()
    await session.aclose()
    await model.aclose()
    if failures:
        raise RuntimeError(failures)


asyncio.run(main())
