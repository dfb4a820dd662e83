"""What to run: YAML groups (values), `schema` (names, types, units, invariants), `load` (compose and check)."""
