"""Instructor: a type out of a reply, by a tool that has to be called, and by a JSON Schema."""

import json
import os

import instructor
import openai
from person import Person

MODEL = "midstream-demo"
MESSAGES = [{"role": "user", "content": "Ada is 36 years old. As JSON."}]


def person(client, mode):
    made = instructor.from_openai(client, mode=mode)
    parsed = made.create(model=MODEL, messages=MESSAGES, response_model=Person, temperature=0, max_retries=0)
    return parsed.model_dump()


client = openai.OpenAI()  # reads OPENAI_BASE_URL and OPENAI_API_KEY
json_client = openai.OpenAI(base_url=os.environ["JSON_BASE_URL"])
print(json.dumps({"did": "person", "is": person(client, instructor.Mode.TOOLS)}))
print(json.dumps({"did": "prompted", "is": person(client, instructor.Mode.JSON)}))
print(json.dumps({"did": "held", "is": person(json_client, instructor.Mode.JSON_SCHEMA)}))
