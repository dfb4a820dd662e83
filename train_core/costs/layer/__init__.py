"""One transformer layer and the two ends of the model, for one micro-batch on one rank: seconds and bytes."""
