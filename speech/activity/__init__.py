"""Voice activity: when a speaker begins, pauses, resumes and stops. Knows frames and their verdicts, no library."""
