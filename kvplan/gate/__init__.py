"""The gate: reads vLLM launches out of repository files, judges them, and says so on the pull request.

Nothing that a file brings is executed, expanded by its own tool, or fetched.
"""
