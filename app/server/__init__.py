"""Sockets: the server, its protocols, and the bounds of a peer."""
