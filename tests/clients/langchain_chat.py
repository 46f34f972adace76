"""LangChain: invoke, stream, and an astream whose task is cancelled in the middle."""

import asyncio
import json

from langchain_openai import ChatOpenAI
from openai import NotFoundError

model = ChatOpenAI(model="midstream-demo", temperature=0)  # reads OPENAI_BASE_URL and OPENAI_API_KEY

whole = model.invoke("Count from 1 to 500.", stop=[" 12"])
print(json.dumps({"did": "whole", "text": whole.text, "tokens": whole.usage_metadata["output_tokens"]}))

reply = None
for chunk in model.stream("Count from 1 to 500.", stop=[" 12"], stream_usage=True):
    reply = chunk if reply is None else reply + chunk
print(json.dumps({"did": "stream", "text": reply.text, "tokens": reply.usage_metadata["output_tokens"]}))


async def leave() -> None:
    """Cancels the task that reads, as an application does when its user goes away."""
    text, enough = "", asyncio.Event()

    async def read() -> None:
        nonlocal text
        async for chunk in model.astream("Count from 1 to 500."):
            text += chunk.text
            if " 20," in text:
                enough.set()

    reading = asyncio.create_task(read())
    await enough.wait()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    print(json.dumps({"did": "left", "text": text, "cancelled": reading.cancelled()}))


asyncio.run(leave())

try:
    ChatOpenAI(model="another").invoke("Hello!")
except NotFoundError as error:
    print(json.dumps({"did": "refused", "why": str(error)}))
