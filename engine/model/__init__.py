"""The forward pass and its parts, and where it runs."""
