"""The KV cache of vLLM: what it keeps, in which blocks, and how many requests that serves."""
