"""Microsoft's Agent Framework with its default client, which is Responses: a tool, whole and streamed, and ten turns of a session."""

import asyncio

from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient
from shared import MODEL, QUESTION, WEATHER, say, ten_turns

called = []


def get_weather(city: str) -> str:
    """Say what the weather is."""
    called.append(["get_weather", {"city": city}])
    return WEATHER


def last(response):
    return response.messages[-1].text


def session(agent, **options):
    """A session that goes on with each question."""
    talk = agent.create_session()

    async def ask():
        return last(await agent.run(QUESTION, session=talk, options=options))

    return ask


async def main():
    agent = Agent(OpenAIChatClient(model=MODEL), tools=[get_weather])
    say("tool", text=last(await agent.run(QUESTION)), called=called)
    called.clear()
    text = last(await agent.run(QUESTION, stream=True).get_final_response())
    say("streamed", text=text, called=called)
    # One that the server keeps, and one that the client repeats.
    say("turns", **await ten_turns(session(agent), session(agent, store=False)))


asyncio.run(main())
