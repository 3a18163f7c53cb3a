"""One reader a format, each over the nodes or words of its own grammar."""
