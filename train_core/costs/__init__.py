"""The cost model of one training step, on paper: parameters, FLOPs, memory per stage, step time. No torch."""

from train_core.costs.block_rates import block_rates
from train_core.costs.counts.flops import FLOPS_FORMULA, hardware_flops, model_flops
from train_core.costs.counts.parameters import num_parameters
from train_core.costs.estimate import Estimate, estimate, estimates, num_recomputed
from train_core.costs.terms import MEMORY_KINDS, STEP_TERMS, StageMemory, StepTime
from train_core.costs.trainers.declared import IMPLEMENTATIONS
from train_core.costs.trainers.implementation import Implementation

__all__ = [
    "FLOPS_FORMULA",
    "IMPLEMENTATIONS",
    "MEMORY_KINDS",
    "STEP_TERMS",
    "Estimate",
    "Implementation",
    "StageMemory",
    "StepTime",
    "block_rates",
    "estimate",
    "estimates",
    "hardware_flops",
    "model_flops",
    "num_parameters",
    "num_recomputed",
]
