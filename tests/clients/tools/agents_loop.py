"""OpenAI's agents SDK with a model that calls again and again: how often it does, and how that ends."""

import asyncio
import json

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    Runner,
    ToolCallItem,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI, BadRequestError

MODEL = "midstream-demo"
LOOKED = []


@function_tool
def get_weather(city: str) -> str:
    """Say what the weather is."""
    LOOKED.append(city)
    return "rain, 7 °C"


async def main():
    set_tracing_disabled(True)  # traces go to OpenAI
    model = OpenAIChatCompletionsModel(model=MODEL, openai_client=AsyncOpenAI(max_retries=0))
    agent = Agent(name="Assistant", model=model, tools=[get_weather])
    try:
        ran = await Runner.run(agent, "Look again and again what the weather is in Oslo.", max_turns=20)
    except BadRequestError as error:
        print(json.dumps({"did": "loop", "looked": len(LOOKED), "refused": error.message}))
    else:
        called = sum(isinstance(item, ToolCallItem) for item in ran.new_items)
        assert called == len(LOOKED)
        print(json.dumps({"did": "loop", "looked": called, "text": ran.final_output}))


asyncio.run(main())
