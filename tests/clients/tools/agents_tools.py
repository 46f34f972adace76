"""OpenAI's agents SDK over chat completions: an agent with a tool, run whole and streamed, and output of a type."""

import asyncio
import json
import os

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    Runner,
    ToolCallItem,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from person import Person

MODEL = "midstream-demo"
QUESTION = "What is the weather in Oslo?"


@function_tool
def get_weather(city: str) -> str:
    """Say what the weather is."""
    return "rain, 7 °C"


def agent(client, **more):
    model = OpenAIChatCompletionsModel(model=MODEL, openai_client=client)
    return Agent(name="Assistant", model=model, model_settings=ModelSettings(temperature=0), **more)


def summary(result):
    calls = [item.raw_item for item in result.new_items if isinstance(item, ToolCallItem)]
    called = [[call.name, json.loads(call.arguments)] for call in calls]
    return {"called": called, "text": result.final_output}


async def main():
    set_tracing_disabled(True)  # traces go to OpenAI
    caller = agent(AsyncOpenAI(), tools=[get_weather])  # reads OPENAI_BASE_URL and OPENAI_API_KEY
    print(json.dumps({"did": "tool", **summary(await Runner.run(caller, QUESTION))}))
    streamed = Runner.run_streamed(caller, QUESTION)
    async for _ in streamed.stream_events():
        pass
    print(json.dumps({"did": "streamed", **summary(streamed)}))
    held = agent(AsyncOpenAI(base_url=os.environ["JSON_BASE_URL"]), output_type=Person)
    ran = await Runner.run(held, "Ada is 36 years old. As JSON.")
    print(json.dumps({"did": "held", "is": ran.final_output.model_dump()}))


asyncio.run(main())
