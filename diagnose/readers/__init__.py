"""Readers of what people have: one module a trainer's notation, and what they share."""
