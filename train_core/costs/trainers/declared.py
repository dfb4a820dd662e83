"""Every trainer that plans can be priced for, each chosen by its name."""

from __future__ import annotations

from train_core.costs.trainers.fsdp import DEEPSPEED, FSDP, TORCHTITAN
from train_core.costs.trainers.megatron_lm import MEGATRON_CORE, MEGATRON_DEEPSPEED, MEGATRON_LM
from train_core.costs.trainers.trisweep import TRISWEEP

IMPLEMENTATIONS = {
    trainer.name: trainer
    for trainer in (TRISWEEP, MEGATRON_LM, MEGATRON_DEEPSPEED, MEGATRON_CORE, FSDP, TORCHTITAN, DEEPSPEED)
}
