"""The Responses API, for clients of OpenAI and Open Responses: responses, their conversations, and a WebSocket for both."""
