"""The formula engine: KV cache, weights, overhead, budget, capacity, verdict. Functions of values, no I/O."""
