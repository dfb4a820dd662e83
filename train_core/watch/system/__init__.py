"""What the devices and processes of this training take while it runs, and nobody else's.

busy      how busy a GPU is, as its driver says
sampler   what each rank reads beside its steps, and what all of them come to
"""
