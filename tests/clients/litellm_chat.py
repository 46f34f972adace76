"""LiteLLM: a completion, a stream, and an asynchronous one that is closed in the middle."""

import asyncio
import json

import litellm

MODEL = "openai/midstream-demo"  # reads OPENAI_BASE_URL and OPENAI_API_KEY
COUNT = [{"role": "user", "content": "Count from 1 to 500."}]


whole = litellm.completion(model=MODEL, messages=COUNT, temperature=0, stop=[" 12"])
text = whole.choices[0].message.content
print(json.dumps({"did": "whole", "text": text, "tokens": whole.usage.completion_tokens}))

chunks = list(
    litellm.completion(
        model=MODEL,
        messages=COUNT,
        temperature=0,
        stop=[" 12"],
        stream=True,
        stream_options={"include_usage": True},
    )
)
text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
print(json.dumps({"did": "stream", "text": text, "tokens": chunks[-1].usage.completion_tokens}))


async def leave() -> None:
    """Closes a stream before its end."""
    text = ""
    stream = await litellm.acompletion(model=MODEL, messages=COUNT, temperature=0, stream=True)
    async for chunk in stream:
        text += chunk.choices[0].delta.content or ""
        if " 20," in text:
            break
    await stream.aclose()
    print(json.dumps({"did": "left", "text": text}))


asyncio.run(leave())

try:
    litellm.completion(model="openai/another", messages=COUNT)
except litellm.NotFoundError as error:
    print(json.dumps({"did": "refused", "why": str(error)}))
