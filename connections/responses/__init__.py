"""The endpoint for clients of the Responses API, of OpenAI and Open Responses: it converts turns for them."""
