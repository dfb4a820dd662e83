"""What to run: YAML groups (values), `schema` (their types), `experiment`, `settings`, `load` (compose, check)."""
