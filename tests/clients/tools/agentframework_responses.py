"""Microsoft's Agent Framework with its default client, which is Responses: a tool, whole and streamed, and ten turns of a session."""

import asyncio
import json

from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient

QUESTION = "What is the weather in Oslo?"
TURNS = 10
called = []


def get_weather(city: str) -> str:
    """Say what the weather is."""
    called.append(["get_weather", {"city": city}])
    return "rain, 7 °C"


async def turns(agent):
    """A session that the server keeps, and one that the client repeats."""
    texts = []
    for options in ({}, {"store": False}):
        session = agent.create_session()
        texts += [last(await agent.run(QUESTION, session=session, options=options)) for _ in range(TURNS)]
    return {"texts": sorted(set(texts)), "count": len(texts)}


def last(response):
    return response.messages[-1].text


async def main():
    agent = Agent(OpenAIChatClient(model="midstream-demo"), tools=[get_weather])
    text = last(await agent.run(QUESTION))
    print(json.dumps({"did": "tool", "called": called, "text": text}))
    called.clear()
    text = last(await agent.run(QUESTION, stream=True).get_final_response())
    print(json.dumps({"did": "streamed", "called": called, "text": text}))
    print(json.dumps({"did": "turns"} | await turns(agent)))


asyncio.run(main())
