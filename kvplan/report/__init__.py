"""Typed models of what kvplan says, and their text, Markdown and JSON."""
