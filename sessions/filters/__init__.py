"""Filters of messages and replies: words, patterns and hooks, one character at a time."""
