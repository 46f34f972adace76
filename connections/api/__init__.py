"""The APIs of other vendors, and what they share: each dialect converts its requests to turns, and turns to its events."""
