"""Pydantic AI with a model that calls again and again: how often it does, and how that ends."""

from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel
from shared import MODEL, WEATHER, say

LOOKED = []


def get_weather(city: str) -> str:
    """Say what the weather is."""
    LOOKED.append(city)
    return WEATHER


agent = Agent(OpenAIChatModel(MODEL), tools=[get_weather])  # reads OPENAI_BASE_URL and OPENAI_API_KEY
try:
    ran = agent.run_sync("Look again and again what the weather is in Oslo.")
except ModelHTTPError as error:
    say("loop", looked=len(LOOKED), refused=str(error))
else:
    say("loop", looked=len(LOOKED), text=ran.output)
