"""Images in messages and prompts: how they are cut, decoded and encoded."""
