"""Images in messages: which ones, and where they stand. None is decoded in the gateway."""
