"""What to run: the YAML groups hold the values, and this package makes checked values of them.

    overrides    what a person changes, taken apart once: `Overrides`
    load         `compose` them into a `Composition` (tree and `Settings`), and make changed copies with `with_values`
    schema       names and types of every choice; `world`, `sites` and `sweep_spec` those of facts, with their units
    axes         the axes of a sweep: lists, ranges, side by side, on conditions; `expression` computes over their keys
    control      how a sweep is carried out: its budget, its controller, the kind of its jobs, who is told
    knobs        the table of what makes up a plan, and how labels, rows and columns spell it
    setup        what is priced: a plan for a model on a cluster, and the rules by which it can exist
    mixed        one job over several types of devices: the block of stages on each
    experiment   a setup and how it is run, which is what the trainer takes
    trainer_spec which program trains; `trainer_call` makes its command from a plan, and `templates` puts names in
    units        units and sizes that several packages spell out
    settings     everything that a command is told
    application  the same configuration as a plain Hydra application
    remedies     right values near a wrong one, for the errors to name
    errors       errors that are written for the person at the keyboard, and exit codes

Nothing is imported here, so that a module that needs only an error does not have to wait for Hydra.
"""
