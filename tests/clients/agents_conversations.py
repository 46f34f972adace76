"""OpenAI's agents SDK: a session kept by the Conversations API, its items, the last one taken back, and the end of it."""

import asyncio

import openai
from agents import Agent, OpenAIConversationsSession, Runner, set_default_openai_client, set_tracing_disabled
from shared import MODEL, say

AGENT = Agent(name="Assistant", instructions="You are a helpful assistant.", model=MODEL)


def words(item):
    """Who said something, and what."""
    content = item["content"]
    return [item["role"], content if isinstance(content, str) else "".join(part["text"] for part in content)]


async def main():
    client = openai.AsyncOpenAI()
    set_tracing_disabled(True)
    set_default_openai_client(client)
    session = OpenAIConversationsSession(openai_client=client)
    await Runner.run(AGENT, "My name is Ada.", session=session)
    again = await Runner.run(AGENT, "What is my name?", session=session)
    say("again", text=again.final_output)
    say("items", items=[words(item) for item in await session.get_items()])
    say("popped", item=words(await session.pop_item()))
    say("left", items=[words(item) for item in await session.get_items()])
    conversation_id = await session._get_session_id()
    await session.clear_session()
    try:
        await client.conversations.retrieve(conversation_id)
    except openai.NotFoundError:
        say("cleared")


asyncio.run(main())
