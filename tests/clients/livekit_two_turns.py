"""LiveKit's plugin for OpenAI, text only: a turn, one that is interrupted, one that remembers the first, the history."""

import asyncio
import json

from livekit.plugins.openai.realtime import RealtimeModel


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
    model = RealtimeModel(model="midstream-demo", modalities=["text"])
    session = model.session()
    failures = []
    session.on("error", failures.append)
    await session.update_instructions("You are a helpful assistant.")
    print(json.dumps({"did": "first"} | await reply(session, "My name is Ada.")))
    print(json.dumps({"did": "cancelled"} | await reply(session, "Count from 1 to 500.", until=" 20,")))
    print(json.dumps({"did": "again"} | await reply(session, "What is my name?")))
    items = [[item.role, item.text_content] for item in session.chat_ctx.items]
    print(json.dumps({"did": "history", "items": items}))
    await session.aclose()
    await model.aclose()
    if failures:
        raise RuntimeError(failures)


asyncio.run(main())
