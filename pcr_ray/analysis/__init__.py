"""What the numbers mean: frames, statistics, tables, figures, reports."""
