"""Does a quantised KV cache change what the model says? Forced text, greedy steps, needles; a verdict."""
