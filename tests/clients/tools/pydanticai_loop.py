"""Pydantic AI with a model that calls again and again: how often it does, and how that ends."""

import asyncio
import json

from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel

LOOKED = []
agent = Agent(OpenAIChatModel("midstream-demo"))  # reads OPENAI_BASE_URL and OPENAI_API_KEY


@agent.tool_plain
def get_weather(city: str) -> str:
    """Say what the weather is."""
    LOOKED.append(city)
    return "rain, 7 °C"


async def main():
    try:
        ran = await agent.run("Look again and again what the weather is in Oslo.")
    except ModelHTTPError as error:
        print(json.dumps({"did": "loop", "looked": len(LOOKED), "refused": str(error)}))
    else:
        print(json.dumps({"did": "loop", "looked": len(LOOKED), "text": ran.output}))


asyncio.run(main())
