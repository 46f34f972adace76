"""The endpoint for readers of shared conversations."""
