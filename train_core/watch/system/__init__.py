"""The use of devices and processes by this training while it runs, and by nobody else.

busy      how busy a GPU is, as its driver says
sampler   what each rank reads beside its steps, and what all of them come to
"""
