"""LiveKit's plugin for OpenAI, text only: a turn, one that is interrupted, one that remembers the first, the history."""

import asyncio

from livekit.plugins.openai.realtime import RealtimeModel
from shared import MODEL, say


async def reply(session, text, *, until=None):
    """What is replied; where `until` was said, the reply is interrupted."""
    context = session.chat_ctx.copy()
    context.add_message(role="user", content=text)
    await session.update_chat_ctx(context)
    generation = await session.generate_reply()
    output = ""
    async for message in generation.message_stream:
        async for delta in message.text_stream:
            output += delta
            if until is not None and until in output:
                session.interrupt()
                until = None
    return {"text": output}


async def main():
    """Reads OPENAI_BASE_URL and OPENAI_API_KEY."""
    model = RealtimeModel(model=MODEL, modalities=["text"])
    session = model.session()
    failures = []
    session.on("error", failures.append)
    await session.update_instructions("You are a helpful assistant.")
    say("first", **await reply(session, "My name is Ada."))
    say("cancelled", **await reply(session, "Count from 1 to 500.", until=" 20,"))
    say("again", **await reply(session, "What is my name?"))
    items = [[item.role, item.text_content] for item in session.chat_ctx.items]
    say("history", items=items)
    await session.aclose()
    await model.aclose()
    if failures:
        raise RuntimeError(failures)


asyncio.run(main())
