"""Every trainer that plans can be priced for, each chosen by its name."""

from __future__ import annotations

from train_core.costs.trainers.deepspeed import DEEPSPEED
from train_core.costs.trainers.fsdp import FSDP
from train_core.costs.trainers.megatron_core import MEGATRON_CORE
from train_core.costs.trainers.megatron_deepspeed import MEGATRON_DEEPSPEED
from train_core.costs.trainers.megatron_lm import MEGATRON_LM
from train_core.costs.trainers.torchtitan import TORCHTITAN
from train_core.costs.trainers.trisweep import TRISWEEP

IMPLEMENTATIONS = {
    trainer.name: trainer
    for trainer in (TRISWEEP, MEGATRON_LM, MEGATRON_DEEPSPEED, MEGATRON_CORE, FSDP, TORCHTITAN, DEEPSPEED)
}
