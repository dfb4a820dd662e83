"""The optimizer step: from the gradients of a step's passes to new weights.

learning_rate   the rate of each step, of every `training.schedule`. No torch.
optimizer       `Optimizer.step` over all axes: sum gradients, clip their global norm, update, share the weights
"""
