"""Processes for sound: kept alive, connected, shared by owners. Knows no recognizer and no voice."""
