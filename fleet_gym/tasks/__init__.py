"""Tasks: what the robots are to do."""
