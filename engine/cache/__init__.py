"""Keys and values: where they are stored, who holds them, and what is kept for later turns."""
