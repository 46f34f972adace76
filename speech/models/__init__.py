"""Speech models of transformers: supported families, and how to load one. The gateway uses the preflight only."""
