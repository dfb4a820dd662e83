"""Trainers: what each does differently, and which plans it can run."""
