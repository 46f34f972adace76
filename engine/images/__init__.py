"""Images in messages: which ones, and where they are. The gateway decodes none."""
