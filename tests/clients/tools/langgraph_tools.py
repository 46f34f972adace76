"""LangGraph's agent: a tool, run whole and streamed, and a reply of a type."""

import os

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_openai import ChatOpenAI
from person import Person
from shared import AS_JSON, MODEL, QUESTION, WEATHER, say


def get_weather(city: str) -> str:
    """Say what the weather is."""
    return WEATHER


def called(messages):
    calls = [call for message in messages if isinstance(message, AIMessage) for call in message.tool_calls]
    return [[call["name"], call["args"]] for call in calls]


chat = ChatOpenAI(model=MODEL, temperature=0)  # reads OPENAI_BASE_URL
agent, question = (
    create_agent(chat, tools=[get_weather]),
    {"messages": [{"role": "user", "content": QUESTION}]},
)
messages = agent.invoke(question)["messages"]
say("tool", called=called(messages), text=messages[-1].text)

text, state = "", None
for kind, reported in agent.stream(question, stream_mode=["messages", "values"]):
    if kind == "values":
        state = reported["messages"]
    elif isinstance(reported[0], AIMessageChunk):
        text += reported[0].text
final = state[-1].text
assert text.endswith(final)
say("streamed", called=called(state), text=final)

demo = ChatOpenAI(model=MODEL, temperature=0, base_url=os.environ["JSON_BASE_URL"])
for did, asked, method in (
    ("person", chat, "function_calling"),
    ("prompted", chat, "json_mode"),
    ("held", demo, "json_schema"),
):
    person = asked.with_structured_output(Person, method=method).invoke(AS_JSON)
    say(did, **{"is": person.model_dump()})
