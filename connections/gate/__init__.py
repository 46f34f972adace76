"""Who may reach the server at all: addresses, host names, origins."""
