"""What to run: the YAML groups hold the values, and this package makes checked values of them.

    overrides    what a person changes, taken apart once: `Overrides`
    load         `compose` them into a `Composition` (tree and `Settings`), and make changed copies with `with_values`
    schema       names, types and units of everything that can be configured
    experiment   what these are together, and what cannot be
    settings     everything that a command is told
    application  the same configuration as a plain Hydra application
    errors       errors that are written for the person at the keyboard, and exit codes

Nothing is imported here: who needs an error must not wait for Hydra.
"""
