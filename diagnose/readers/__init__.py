"""The logs, scripts and configuration files of each trainer, as UserRuns.

reading     `read_runs`: which file is what, which belong together, and what follows from all of them
log         a log, line by line: where a start begins; `beside`: what is said beside steps
general     lines about steps of programs that nobody knows, by the words and units of their figures
formats     lines about steps of every trainer; `steps`: their figures; `bars`: bars; `unknown`: by chosen patterns
records     steps as rows of CSV and JSON lines; `blocks`: fences, and YAML that is printed
book        the steps of one start, copies of several ranks once
printed     what a trainer prints of its configuration: dumps, sentences, dataclasses
marks       lines that tell what happened beside the steps
commands    launch scripts and command lines; `shell`: a script as its commands, variables put in; `branches`: which of
            its branches count; `sums`: its sums
folders     MLflow's; `python_files`: Python as a configuration
trees       JSON, YAML, TOML and printed dictionaries as settings under dotted names
families    whose words the settings are
columns     from the settings of each trainer to the columns of `trisweep estimate`
computed    what follows from printed figures: the device, the batch, the sequence
given       what the command line says
missing     `missing_of`: what a price still needs, and where it would stand
said        of two facts the one that is believed; values in one notation
text        the lines of a file, as a terminal would show them
"""

from diagnose.readers.missing import MissingFact, missing_of
from diagnose.readers.reading import read_runs

__all__ = ["MissingFact", "missing_of", "read_runs"]
