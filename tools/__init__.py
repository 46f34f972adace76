"""Programs for people who work on Midstream; none of them ships."""
