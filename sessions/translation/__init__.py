"""Live translation: its rules, its growing source, and the decodes of that. It registers itself with sessions as `SourceReplies`."""
