"""One message and its reply: the state machine, its journal, its prompt and the wait for the engine."""
