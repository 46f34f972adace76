"""Images that clients send: what they are, by their bytes, and whether they may be sent at all. Nothing here decodes any."""
