"""`/v1/realtime/translations`: OpenAI's translation sessions, on top of live translations."""
