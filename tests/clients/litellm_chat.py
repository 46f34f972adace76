"""LiteLLM: a completion, a stream, and an asynchronous one that is closed in the middle."""

import asyncio

import litellm
from shared import COUNT, MODEL, say

REQUEST = {
    "model": f"openai/{MODEL}",
    "messages": COUNT,
    "temperature": 0,
}  # reads OPENAI_BASE_URL and OPENAI_API_KEY

whole = litellm.completion(**REQUEST, stop=[" 12"])
say("whole", text=whole.choices[0].message.content, tokens=whole.usage.completion_tokens)

usage = {"include_usage": True}
chunks = list(litellm.completion(**REQUEST, stop=[" 12"], stream=True, stream_options=usage))
text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
say("stream", text=text, tokens=chunks[-1].usage.completion_tokens)


async def leave() -> None:
    """Closes a stream before its end."""
    text = ""
    stream = await litellm.acompletion(**REQUEST, stream=True)
    async for chunk in stream:
        text += chunk.choices[0].delta.content or ""
        if " 20," in text:
            break
    await stream.aclose()
    say("left", text=text)


asyncio.run(leave())

try:
    litellm.completion(**REQUEST | {"model": "openai/another"})
except litellm.NotFoundError as error:
    say("refused", why=str(error))
