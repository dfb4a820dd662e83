"""The cost model of one training step, on paper: parameters, FLOPs, memory per stage, step time. No torch."""

from train_core.costs.estimate import Estimate, StageMemory, StepTime, estimate, num_recomputed
from train_core.costs.flops import FLOPS_FORMULA, hardware_flops, model_flops
from train_core.costs.implementation import IMPLEMENTATIONS, Implementation
from train_core.costs.parameters import num_parameters

__all__ = [
    "FLOPS_FORMULA",
    "IMPLEMENTATIONS",
    "Estimate",
    "Implementation",
    "StageMemory",
    "StepTime",
    "estimate",
    "hardware_flops",
    "model_flops",
    "num_parameters",
    "num_recomputed",
]
