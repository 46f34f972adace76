"""The door by which shared conversations are read."""
