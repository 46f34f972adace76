"""`/v1/realtime`: OpenAI's Realtime protocol, its text part, as a projection of a conversation's turns."""
