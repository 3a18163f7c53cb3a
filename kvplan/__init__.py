"""kvplan: plan, tune and gate the GPU memory of vLLM servers."""

__version__ = "0.1.0"
