"""The rules of live translation: a growing source, its segments, and which words of the target may be told. Pure."""
