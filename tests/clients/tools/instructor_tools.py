"""Instructor: a type out of a reply, by a tool that has to be called, and by a JSON Schema."""

import os

import instructor
import openai
from person import Person
from shared import AS_JSON, MODEL, say

REQUEST = {
    "model": MODEL,
    "messages": [{"role": "user", "content": AS_JSON}],
    "temperature": 0,
    "max_retries": 0,
}
client = openai.OpenAI()  # reads OPENAI_BASE_URL and OPENAI_API_KEY
json_client = openai.OpenAI(base_url=os.environ["JSON_BASE_URL"])
for did, asked, mode in (
    ("person", client, instructor.Mode.TOOLS),
    ("prompted", client, instructor.Mode.JSON),
    ("held", json_client, instructor.Mode.JSON_SCHEMA),
):
    parsed = instructor.from_openai(asked, mode=mode).create(**REQUEST, response_model=Person)
    say(did, **{"is": parsed.model_dump()})
