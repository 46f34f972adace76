"""Sockets: the server, its protocols, and what a peer may cost."""
