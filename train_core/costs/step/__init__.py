"""A whole step: the pipeline around the layers, its communication and update, and what every stage holds."""
