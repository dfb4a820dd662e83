"""The real trainer's step at full size without devices: fake tensors, and ranks that do not exist.

rehearse        `rehearse(experiment) -> Rehearsal`: every stage, in processes of their own
counts          how much of a step shows everything; `Rehearsal`, `StageStep`, `StageBytes`: what was counted; no torch
stage           one stage: a real `Trainer`, made of parts that need neither data nor other ranks
observer        what its operations allocate, compute and send
"""
