"""What clients of OpenAI's API ask for: the fields that are served, and what they mean to the floors below."""
