"""Find a model, a GPU or a workload: built-in profile, user's profile, local folder, hub id."""
