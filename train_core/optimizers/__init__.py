"""The optimizer step: from the gradients of a step's passes to new weights.

learning_rate   the rate of each step, of every `training.schedule`. No torch.
adam, muon      the states of a flat part of the weights, and the update of it: AdamW, or Muon for matrices
optimizer       `Optimizer.step` over all axes: sum gradients, clip their global norm, update, share the weights
"""
