"""Clients' images: their kinds, by their bytes, and whether they may be sent. Nothing here decodes any."""
