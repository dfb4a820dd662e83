"""The cost model of one training step, on paper: parameters, FLOPs, memory per stage, step time. No torch.

estimate       `estimate(setup)`: one plan; `price`: many plans at once, by the same formulas
setting        what all plans of one search share, and the columns that plans are priced in
kernels        seconds of one product, wide or in 8 or 4 bits, and of a memory-bound operation; `collectives`: of one
               collective or transfer, on the link tiers that a group of ranks crosses
work           what stages share, priced once per shard; `stages` that do the same work are priced once
flops_rates    the FLOPs of a step and their rates, which measurements state in the same fields
terms          where a step's seconds go and what a rank's bytes hold
pass_seconds   what each stage takes for one micro-batch, chunk by chunk
mixed          one pipeline over several types of devices, and what each type does in a step
trainers       in what trainers differ when they carry out the same plan: each such fact, and each trainer by its name

axes           the axes of parallelism, and which rank is where; `shared_rules`: how a trainer does what is counted

Rooms, from the bottom up: `counts` (exact), `layer`, `step`.
Which plans a trainer can run at all stands in `conf.plan.trainer_limits`.
"""

from costs.counts.flops import DOCUMENT_FLOPS_FORMULA, FLOPS_FORMULA, DoneShares, hardware_flops, model_flops
from costs.counts.parameters import num_parameters
from costs.estimate import Estimate, estimate, estimates, executed_flops
from costs.mixed import block_rates
from costs.terms import MEMORY_KINDS, STEP_TERMS, StageMemory, StepTime
from costs.trainers import IMPLEMENTATIONS, Implementation

__all__ = [
    "DOCUMENT_FLOPS_FORMULA",
    "FLOPS_FORMULA",
    "IMPLEMENTATIONS",
    "MEMORY_KINDS",
    "STEP_TERMS",
    "DoneShares",
    "Estimate",
    "Implementation",
    "StageMemory",
    "StepTime",
    "block_rates",
    "estimate",
    "estimates",
    "executed_flops",
    "hardware_flops",
    "model_flops",
    "num_parameters",
]
