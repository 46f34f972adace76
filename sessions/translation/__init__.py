"""Live translation: its rules, its growing source, and its decodes. It registers itself with sessions as `SourceReplies`."""
