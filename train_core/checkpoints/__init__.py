"""Saved states of a training, for any layout, and weights from and for elsewhere."""
