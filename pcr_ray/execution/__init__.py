"""How it runs: the only room with Ray."""
