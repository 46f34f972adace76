"""Listening while somebody speaks: a process for all conversations, and the gateway's side of it."""
