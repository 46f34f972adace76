"""Live translation as rules: a source that grows, its segments, and which words of the target may be told. Pure."""
