"""The endpoint for people's own data: export and erasure."""
