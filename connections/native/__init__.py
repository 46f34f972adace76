"""The endpoint of the native protocol: /v1/ws."""
