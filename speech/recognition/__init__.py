"""Recognition of recordings: a process, and the gateway's side of it."""
