"""`midstream doctor`: looks at all that the service needs, before it is started or beside it, and says what to mend."""
