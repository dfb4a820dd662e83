"""Checked values of what to run, made from the YAML files of the groups, which lie in the folders beside these rooms.

Rooms, from the top down; every one imports only from those below it:

compose   from overrides to `Settings`: `load.compose`
plan      what is run: a `Setup`, an `Experiment`, by which rules a plan can exist, and what each trainer cannot run
types     what the groups hold

Here is what all of them stand on:

overrides       what a person changes on the command line, taken apart once
folders         where files of groups are looked for, `trisweep.yaml` among them, and all that can be chosen
own_files       files of the packages, also where a job imports these from an archive
yaml_text       YAML files as they are written, by version 1.2
errors          errors and exit codes, those of the YAML reader in plain words
nearest         what may have been meant by a wrong word, and right values near a wrong number
credentials     which values are secrets, neither kept nor shown; `private_files`: who may read what is written
visible         text as files and terminals may show it, without control characters, tags and links
grouped         items by what they have in common
units           units and sizes that several packages spell out

Nothing is imported here, so that a module that needs only an error does not have to wait for Hydra.
"""
