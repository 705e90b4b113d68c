"""What is asked: a sweep file, from YAML to trials. No ray, no torch, no MLflow."""
