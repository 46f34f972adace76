"""How the page reaches a browser: in few files, compressed, and kept as long as they are true."""
