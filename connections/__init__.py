"""The connections layer: sockets, frames, client ids and outboxes. It knows no prompt, no token and no store key."""
