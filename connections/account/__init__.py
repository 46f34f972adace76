"""The door for people's own data: export and erasure."""
