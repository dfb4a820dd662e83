"""What a stage of a pipeline is called in pictures and tables: its number, and where they differ its devices."""

from __future__ import annotations

from conf.experiment import Experiment


def devices_of_stages(experiment: Experiment) -> list[str]:
    """The cluster on whose devices each stage runs, first to last."""
    return [
        block.cluster.name
        for block, count in zip(experiment.blocks, experiment.stages_per_block, strict=True)
        for _ in range(count)
    ]


def stage_names(experiment: Experiment, what: str = "") -> list[str]:
    """`stage 3`, and behind it the devices of a mixed job, and what kind of numbers its row has."""
    devices = devices_of_stages(experiment) if experiment.mixed else [""] * len(experiment.layers_per_stage)
    return [", ".join(filter(None, (f"stage {stage}", of, what))) for stage, of in enumerate(devices)]
