"""The door for clients of the Responses API, OpenAI's and Open Responses': projections of turns into what they read and write."""
