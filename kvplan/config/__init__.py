"""The one set of settings that every part of kvplan speaks: vLLM's own flags."""
