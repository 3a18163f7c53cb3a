"""config.json -> layers that hold cache and tensors that weigh. Pure: dictionaries in, dataclasses out."""
