"""What to run: the YAML groups hold the values, and this package makes checked values of them.

    overrides    what a person changes, taken apart once: `Overrides`
    load         `compose` them into a `Composition` (tree and `Settings`), and make changed copies with `with_values`
    schema       names and types of every choice; `world`, `sites` and `sweep_spec` those of facts, with their units
    knobs        the table of what makes up a plan, and how labels, rows, columns and words spell it
    setup        what is priced: a plan for a model on a cluster, and which cannot exist
    experiment   a setup and how it is run: what the trainer takes
    units        units and sizes that several packages spell out
    settings     everything that a command is told
    application  the same configuration as a plain Hydra application
    errors       errors that are written for the person at the keyboard, and exit codes

Nothing is imported here: who needs an error must not wait for Hydra.
"""
