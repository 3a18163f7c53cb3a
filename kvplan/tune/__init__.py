"""The search: space, boundary, trials, journal, recommendation."""
