"""Runs turns to their ends, with a conversation or without one."""
