"""Makes prompts from messages, in a process of its own, fairly between clients."""
