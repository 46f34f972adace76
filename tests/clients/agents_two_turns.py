"""OpenAI's agents SDK for Python: a turn, one that is interrupted, one that remembers the first, and the history."""

import asyncio
import os

from agents.realtime import RealtimeAgent, RealtimeRunner
from shared import MODEL, say

URL = os.environ["OPENAI_BASE_URL"].replace("http", "ws", 1) + f"/realtime?model={MODEL}"

AGENT = RealtimeAgent(name="Assistant", instructions="You are a helpful assistant.")
SETTINGS = {"model_name": MODEL, "output_modalities": ["text"]}


async def reply(session, text, *, until=None):
    """What is replied, and the conversation as the SDK keeps it; where `until` was said, the reply is interrupted."""
    output, history = "", []
    await session.send_message(text)
    async for event in session:
        if event.type == "error":
            raise RuntimeError(event.error)
        if event.type == "history_updated":
            history = event.history
        if event.type == "raw_model_event" and event.data.type == "output_text_delta":
            output += event.data.delta
            if until is not None and until in output:
                await session.interrupt()
                until = None
        if event.type == "agent_end":
            break
    return output, [[item.role, "".join(part.text or "" for part in item.content)] for item in history]


async def main():
    """Reads OPENAI_API_KEY."""
    runner = RealtimeRunner(AGENT, config={"model_settings": SETTINGS})
    async with await runner.run(model_config={"url": URL}) as session:
        output, _ = await reply(session, "My name is Ada.")
        say("first", text=output)
        output, _ = await reply(session, "Count from 1 to 500.", until=" 20,")
        say("cancelled", text=output)
        output, items = await reply(session, "What is my name?")
        say("again", text=output)
        say("history", items=items)


asyncio.run(main())
