"""`GET /v1/conversations/{id}/events`: a conversation as an event stream, for clients that only read."""
