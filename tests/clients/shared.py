"""What the scripts share: what they ask, how they print what they did, and the microphone of those that speak."""

import asyncio
import json
import os
from pathlib import Path

MODEL = "midstream-demo"
COUNT = [{"role": "user", "content": "Count from 1 to 500."}]
QUESTION = "What is the weather in Oslo?"
WEATHER = "rain, 7 °C"
AS_JSON = "Ada is 36 years old. As JSON."
STORY = "Tell me a story about a lighthouse."
RATE = 24_000
PART = RATE // 25 * 2
"""Bytes of 40 milliseconds."""


def say(did, **facts):
    """Print what was done, for the test to read."""
    print(json.dumps({"did": did} | facts))


async def ten_turns(*asks):
    """Ask the same question ten times in each of these ways; what is replied."""
    texts = [await ask() for ask in asks for _ in range(10)]
    return {"texts": sorted(set(texts)), "count": len(texts)}


class Microphone:
    """Sends what is said, or silence, as fast as it is spoken. SPOKEN names a folder of what is said."""

    def __init__(self, push):
        self._push, self._waiting = push, bytearray()

    def speak(self, name):
        """Say a sentence."""
        self._waiting.extend(Path(os.environ["SPOKEN"], f"{name}.pcm").read_bytes())

    async def run(self):
        """Send until cancelled."""
        while True:
            part = bytes(self._waiting[:PART]).ljust(PART, b"\0")
            del self._waiting[:PART]
            await self._push(part)
            await asyncio.sleep(0.04)

    async def talk(self, reply):
        """Two spoken turns, the second interrupted after so many bytes of its sound, and one about the first."""
        sending = asyncio.create_task(self.run())
        self.speak("name")
        say("first", **await reply())
        self.speak("story")
        say("interrupted", **await reply((RATE * 2 * 6 // 5, lambda: self.speak("again"))))
        say("again", **await reply())
        sending.cancel()
