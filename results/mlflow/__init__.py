"""MLflow: what a run contains, the one writer, the store and its UI."""
