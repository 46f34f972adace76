"""OpenAI's Python client over its Realtime protocol: a turn, one that is cancelled, one that remembers the first."""

import asyncio

import openai
from shared import MODEL, say


async def reply(connection, text, *, until=None):
    """What is replied; where `until` was said, the reply is cancelled."""
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    await connection.conversation.item.create(item=item)
    await connection.response.create()
    output, item_id = "", None
    async for event in connection:
        match event.type:
            case "response.output_text.delta":
                output, item_id = output + event.delta, event.item_id
                if until is not None and until in output:
                    await connection.response.cancel()
                    until = None
            case "response.done":
                tokens = event.response.usage.output_tokens
                return {"text": output, "item": item_id, "status": event.response.status, "tokens": tokens}
            case "error":
                raise RuntimeError(event.error.message)


async def kept(connection, item_id):
    """What the server has kept of an item."""
    await connection.conversation.item.retrieve(item_id=item_id)
    async for event in connection:
        if event.type == "conversation.item.retrieved":
            return event.item.content[0].text


async def main():
    """Reads OPENAI_BASE_URL and OPENAI_API_KEY."""
    async with openai.AsyncOpenAI() as client, client.realtime.connect(model=MODEL) as connection:
        await connection.session.update(session={"type": "realtime", "output_modalities": ["text"]})
        say("first", **await reply(connection, "My name is Ada."))
        cancelled = await reply(connection, "Count from 1 to 500.", until=" 20,")
        cancelled["kept"] = await kept(connection, cancelled["item"])
        say("cancelled", **cancelled)
        say("again", **await reply(connection, "What is my name?"))


asyncio.run(main())
