"""The engine's process, the gateway's side of it, and what keeps it alive."""
