"""Fit the overhead of a launch to measured launches; the user's own store of them."""
