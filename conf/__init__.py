"""What to run: YAML groups (values), `schema` (names, types, units, invariants), `load` (Hydra compose to a checked value)."""
