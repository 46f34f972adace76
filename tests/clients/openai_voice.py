"""OpenAI's Python client with sound: two spoken turns, the second interrupted by speech and truncated to what was played."""

import asyncio
import base64
from functools import partial

import openai
from shared import MODEL, RATE, Microphone


class Reply:
    """A reply that is played as it comes."""

    def __init__(self):
        self.item, self.heard, self.transcript, self.bytes, self.began = None, "", "", 0, None

    def played_ms(self):
        """So much of it was played."""
        elapsed = asyncio.get_running_loop().time() - self.began
        return int(min(elapsed, self.bytes / 2 / RATE) * 1000)


async def reply(connection, on_sound=None):  # noqa: C901 - one for each event
    """What is replied to what is said; where speech interrupts it, how much of it was played is told."""
    this, ms, kept = Reply(), None, None
    async for event in connection:
        match event.type:
            case "conversation.item.input_audio_transcription.completed":
                this.heard = event.transcript
            case "response.output_audio.delta":
                this.began = this.began or asyncio.get_running_loop().time()
                this.item = event.item_id
                this.bytes += len(base64.b64decode(event.delta))
                if on_sound is not None and this.bytes > on_sound[0]:
                    on_sound[1]()
                    on_sound = None
            case "response.output_audio_transcript.done":
                this.transcript = event.transcript
            case "input_audio_buffer.speech_started" if this.item is not None:
                ms = this.played_ms()
                await connection.conversation.item.truncate(
                    item_id=this.item, content_index=0, audio_end_ms=ms
                )
            case "conversation.item.truncated":
                kept = event.audio_end_ms
                await connection.conversation.item.retrieve(item_id=event.item_id)
            case "conversation.item.retrieved":
                reported = {"ms": ms, "kept_ms": kept, "kept": event.item.content[0].transcript}
                return {"heard": this.heard, "said": this.transcript, "bytes": this.bytes} | reported
            case "response.done" if ms is None:
                return {"heard": this.heard, "said": this.transcript, "bytes": this.bytes}
            case "error":
                raise RuntimeError(event.error.message)


async def main():
    """Reads OPENAI_BASE_URL and OPENAI_API_KEY."""
    async with openai.AsyncOpenAI().realtime.connect(model=MODEL) as connection:
        audio = {
            "input": {
                "format": {"type": "audio/pcm", "rate": RATE},
                "transcription": {"model": "gpt-4o-mini-transcribe"},
                "turn_detection": {"type": "server_vad"},
            },
            "output": {"format": {"type": "audio/pcm", "rate": RATE}, "voice": "marin"},
        }
        session = {"type": "realtime", "output_modalities": ["audio"], "audio": audio}
        await connection.session.update(session=session)

        async def push(part):
            await connection.input_audio_buffer.append(audio=base64.b64encode(part).decode())

        await Microphone(push).talk(partial(reply, connection))


asyncio.run(main())
