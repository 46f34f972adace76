"""LlamaIndex: a FunctionAgent with a tool, whole and streamed, and a reply of a type."""

import asyncio
import json
import os

from llama_index.core.agent.workflow import AgentStream, FunctionAgent, ToolCallResult
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike
from person import Person

MODEL = "midstream-demo"
QUESTION = "What is the weather in Oslo?"


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
    return "rain, 7 °C"


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
    print(json.dumps({"did": "tool", **await ask(streaming=False)}))
    print(json.dumps({"did": "streamed", **await ask(streaming=True)}))
    requested = [ChatMessage(role="user", content="Ada is 36 years old. As JSON.")]
    caller = llm(os.environ["OPENAI_BASE_URL"]).as_structured_llm(Person)
    print(json.dumps({"did": "person", "is": (await caller.achat(requested)).raw.model_dump()}))
    held = llm(os.environ["JSON_BASE_URL"], should_use_structured_outputs=True).as_structured_llm(Person)
    print(json.dumps({"did": "held", "is": (await held.achat(requested)).raw.model_dump()}))


asyncio.run(main())
