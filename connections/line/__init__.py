"""One open connection: its reader, its outbox, its requests, and the registry of all."""
