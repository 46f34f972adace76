"""`/v1/realtime/translations`: OpenAI's translation sessions, as a projection of live translations."""
