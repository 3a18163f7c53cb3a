"""Workloads, the streaming load client and the statistics of what it measured."""
