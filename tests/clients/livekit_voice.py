"""LiveKit's plugin for OpenAI with sound: two spoken turns, the second interrupted by speech and truncated to what was played."""

import asyncio
from functools import partial

from livekit import rtc
from livekit.plugins.openai.realtime import RealtimeModel
from shared import MODEL, RATE, Microphone


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
    """Reads OPENAI_BASE_URL and OPENAI_API_KEY."""
    model = RealtimeModel(model=MODEL)
    session = model.session()
    failures = []
    session.on("error", failures.append)

    async def push(part):
        samples = len(part) // 2
        session.push_audio(rtc.AudioFrame(part, RATE, num_channels=1, samples_per_channel=samples))

    await Microphone(push).talk(partial(reply, session, Ears(session)))
    await session.aclose()
    await model.aclose()
    if failures:
        raise RuntimeError(failures)


asyncio.run(main())
