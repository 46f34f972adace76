"""Answers: responses, their items, and the events of a stream."""
