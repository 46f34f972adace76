"""The door of what people may do with all that is theirs: have it, and have it erased."""
