"""`/v1/realtime`: OpenAI's Realtime protocol, with speech and translation, as a projection of a conversation's turns."""
