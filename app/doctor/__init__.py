"""`midstream doctor`: checks all that the service needs, before the start or while it runs, and says what to mend."""
