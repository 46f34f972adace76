"""LangChain: invoke, stream, and an astream whose task is cancelled in the middle."""

import asyncio

from langchain_openai import ChatOpenAI
from openai import NotFoundError
from shared import MODEL, say

PROMPT = "Count from 1 to 500."
model = ChatOpenAI(model=MODEL, temperature=0)  # reads OPENAI_BASE_URL and OPENAI_API_KEY

whole = model.invoke(PROMPT, stop=[" 12"])
say("whole", text=whole.text, tokens=whole.usage_metadata["output_tokens"])

reply = None
for chunk in model.stream(PROMPT, stop=[" 12"], stream_usage=True):
    reply = chunk if reply is None else reply + chunk
say("stream", text=reply.text, tokens=reply.usage_metadata["output_tokens"])


async def leave() -> None:
    """Cancels the task that reads, as an application does when its user goes away."""
    text, enough = "", asyncio.Event()

    async def read() -> None:
        nonlocal text
        async for chunk in model.astream(PROMPT):
            text += chunk.text
            if " 20," in text:
                enough.set()

    reading = asyncio.create_task(read())
    await enough.wait()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    say("left", text=text)


asyncio.run(leave())

try:
    ChatOpenAI(model="another").invoke("Hello!")
except NotFoundError as error:
    say("refused", why=str(error))
