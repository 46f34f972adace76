"""Recognition during speech: a process for all conversations, and the gateway's side of it."""
