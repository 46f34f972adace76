"""LlamaIndex: a FunctionAgent with a tool, whole and streamed, and a reply of a type."""

import asyncio
import os

from llama_index.core.agent.workflow import AgentStream, FunctionAgent, ToolCallResult
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike
from person import Person
from shared import AS_JSON, MODEL, QUESTION, WEATHER, say


def llm(url, **more):
    return OpenAILike(
        model=MODEL,
        api_base=url,
        api_key=os.environ["OPENAI_API_KEY"],
        temperature=0,
        is_chat_model=True,
        is_function_calling_model=True,
        **more,
    )


def get_weather(city: str) -> str:
    """Say what the weather is."""
    return WEATHER


async def ask(streaming):
    agent = FunctionAgent(tools=[get_weather], llm=llm(os.environ["OPENAI_BASE_URL"]), streaming=streaming)
    running = agent.run(QUESTION)
    called, text = [], ""
    async for event in running.stream_events():
        if isinstance(event, ToolCallResult):
            called.append([event.tool_name, event.tool_kwargs])
            text = ""
        elif isinstance(event, AgentStream):
            text += event.delta
    response = str(await running)
    assert not streaming or text == response
    return {"called": called, "text": response}


async def main():
    say("tool", **await ask(streaming=False))
    say("streamed", **await ask(streaming=True))
    demo = llm(os.environ["JSON_BASE_URL"], should_use_structured_outputs=True)
    for did, asked in (("person", llm(os.environ["OPENAI_BASE_URL"])), ("held", demo)):
        reply = await asked.as_structured_llm(Person).achat([ChatMessage(role="user", content=AS_JSON)])
        say(did, **{"is": reply.raw.model_dump()})


asyncio.run(main())
