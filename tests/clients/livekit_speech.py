"""LiveKit's plugin for OpenAI with its defaults: its TTS (MP3 as events), and its STT, which hears that sound."""

import asyncio
import json

import aiohttp
from livekit.agents.utils import combine_frames
from livekit.plugins import openai

TEXT = "Tell me a story about a lighthouse."


async def main():
    async with aiohttp.ClientSession():
        tts, stt = openai.TTS(speed=0.8), openai.STT(use_realtime=False)
        frames = [event.frame async for event in tts.synthesize(TEXT)]
        received = await stt.recognize(combine_frames(frames))
        result = {"seconds": sum(frame.duration for frame in frames), "heard": received.alternatives[0].text}
        print(json.dumps({"did": "spoke"} | result))
        await tts.aclose()


asyncio.run(main())
