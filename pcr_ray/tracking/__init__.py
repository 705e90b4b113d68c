"""Where numbers live: the only room with MLflow."""
