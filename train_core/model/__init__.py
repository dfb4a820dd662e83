"""The plain model, which does not know that it may run in parallel: its modules, its first weights, its dropout.

transformer   `Transformer` and the modules that it is made of
mixture       experts in the place of a feed-forward network, and the router that chooses among them
attention     by which kernel of a device attention is computed, and latent attention; `attention_blocks`: that to some
              of the keys, with caps and sinks
documents     what separates documents that a sequence is packed from: spans and positions
elementwise   what lies between matrix products, with backward passes that keep little
initialize    first weights from a seed and a parameter's name, rotary tables; torch's types by their configured names
dropout       masks that follow from what they are for
"""
