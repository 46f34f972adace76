"""The door of the native protocol: /v1/ws."""
