"""The door for readers of shared conversations."""
