"""Conversations in the store: messages, turns, the journal, and the list of conversations."""
