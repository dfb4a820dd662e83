"""The update: what happens between the last backward pass of a step and the first forward pass of the next.

optimizer    `Optimizer`: complete the gradients, clip their global norm, update by AdamW on fp32 masters, share the
             weights
router_bias  biases that keep experts equally busy
"""
