"""`midstream doctor`: checks all that the service needs, before the start or while it runs, and says how to fix it."""
