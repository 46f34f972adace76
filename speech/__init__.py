"""Speech recognition and speech synthesis. Knows no conversations and no clients."""
