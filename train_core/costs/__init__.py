"""The cost model of one training step, on paper: parameters, FLOPs, memory per stage, step time. No torch."""

from train_core.costs.estimate import Estimate, estimate
from train_core.costs.flops import FLOPS_FORMULA, hardware_flops, model_flops
from train_core.costs.memory import StageMemory
from train_core.costs.parameters import num_parameters
from train_core.costs.step_time import StepTime

__all__ = [
    "FLOPS_FORMULA",
    "Estimate",
    "StageMemory",
    "StepTime",
    "estimate",
    "hardware_flops",
    "model_flops",
    "num_parameters",
]
