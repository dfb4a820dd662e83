"""Checked values of what to run, made from the YAML files of the groups.

From overrides to settings:
    overrides     what a person changes, taken apart once; `wrong_overrides` says what is wrong with one
    load          `compose` them into a `Composition` (tree and `Settings`); `tree` changes copies with `with_values`
    folders       where files of groups are looked for, `trisweep.yaml` among them, and all that can be chosen
    settings      everything that a command is told, the control of a sweep among it: budget, kind of job, who is told
    model_from    the shape of a model from a Hugging Face file; `credentials` are neither kept nor shown

Types of what the groups hold:
    schema        how a model is laid out, trained, saved and watched; `model_spec` and `cluster_spec` are facts about
                  models and machines, `sites` about Slurm and tracking
    sweep_spec    a sweep's question and points; `axes` are its lists and ranges, `expression` computes over keys
    stage_spec    what follows the trials of a sweep, and where an experiment stands in its chain
    trainer_spec  which program trains; `trainer_call` makes its command; `trainer_limits`:
                  what each cannot run
    units         units and sizes that several packages spell out

What is run:
    setup_parts   model, clusters, plan and batch, and what follows from them; `chunks` of interleaved pipelines
    plan_checks   by which rules a plan can exist; `expert_axis`: of experts, `plausible`: of a cluster's figures
    setup         parts that can exist, which is what is priced
    experiment    a setup and how it is run, which is what the trainer takes
    knobs         the table of what makes up a plan, and how labels, rows and columns spell it

For the person at the keyboard:
    errors        errors and exit codes; `complaints` and `yaml_errors` put those of libraries in plain words
    remedies      right values near a wrong one; `nearest`: what may have been meant
    private_files who may read what is written

Nothing is imported here, so that a module that needs only an error does not have to wait for Hydra.
"""
