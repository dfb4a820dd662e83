"""Overrides become checked settings here: the only room that knows Hydra.

load         `compose` overrides into a `Composition` (tree and `Settings`); `tree` changes copies with `with_values`
references   `${...}` in a configuration, whose values follow others from point to point
settings     everything that a command is told, the control of a sweep among it: budget, kind of job, who is told
source       files as Hydra is given them; `conf.yaml_text` reads them
complaints   errors of pydantic and Hydra in plain words, those of a wrong override among them
defaults     the `defaults` by which files build on others, and what is wrong in them
kinds        which keys there are, and the types of their values
secrets      stand-ins for what a program is told and nobody else is to see
orders       pairs of keys of which one must not be above the other
plausible    figures of a cluster that no machine can have
script_sweep  a sweep without a file: its command line as overrides, and its file
model_from   the shape of a model from a Hugging Face file, by `model_types`: what its keys mean in each type
model_types  which keys of such a file mean what, by the type of model
"""
