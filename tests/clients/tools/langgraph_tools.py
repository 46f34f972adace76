"""LangGraph's agent: a tool, run whole and streamed, and a reply of a type."""

import json
import os

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_openai import ChatOpenAI
from person import Person

MODEL = "midstream-demo"
QUESTION = {"messages": [{"role": "user", "content": "What is the weather in Oslo?"}]}


def get_weather(city: str) -> str:
    """Say what the weather is."""
    return "rain, 7 °C"


def called(messages):
    calls = [call for message in messages if isinstance(message, AIMessage) for call in message.tool_calls]
    return [[call["name"], call["args"]] for call in calls]


agent = create_agent(ChatOpenAI(model=MODEL, temperature=0), tools=[get_weather])  # reads OPENAI_BASE_URL
messages = agent.invoke(QUESTION)["messages"]
print(json.dumps({"did": "tool", "called": called(messages), "text": messages[-1].text}))

text, state = "", None
for kind, reported in agent.stream(QUESTION, stream_mode=["messages", "values"]):
    if kind == "values":
        state = reported["messages"]
    elif isinstance(reported[0], AIMessageChunk):
        text += reported[0].text
final = state[-1].text
assert text.endswith(final)
print(json.dumps({"did": "streamed", "called": called(state), "text": final}))

prompt = "Ada is 36 years old. As JSON."
chat = ChatOpenAI(model=MODEL, temperature=0)
person = chat.with_structured_output(Person, method="function_calling").invoke(prompt)
print(json.dumps({"did": "person", "is": person.model_dump()}))
person = chat.with_structured_output(Person, method="json_mode").invoke(prompt)
print(json.dumps({"did": "prompted", "is": person.model_dump()}))
demo = ChatOpenAI(model=MODEL, temperature=0, base_url=os.environ["JSON_BASE_URL"])
person = demo.with_structured_output(Person).invoke(prompt)
print(json.dumps({"did": "held", "is": person.model_dump()}))
