"""Trials whose trainer is another program: it is started, its log is read, and its end is told like one of our own.

job          `run_here` and `run_as_task`: a trial folder, on this machine or as a task of a Slurm job; the life of such
             a trial: started, its log read line by line, and followed to its end
process      which of the job's processes this one is, and where they meet; the words and the environment with which one
             starts, and the life of all of them
program_check  before anything is submitted: that the program, its script and its folder are there, that its own parser
             takes its flags, and what does not reach it
parser_program  what the program's own Python runs for that
log_parser   from lines to steps, and to the figures of a program that does not train
figure_parser  from lines to every number that is printed under a name: scripts
printed_numbers  numbers as programs print them, with their units, and what may be two of them
step_numbers  which step a printed number means: those of epochs, ranks, validations and checkpoints
performance  from steps to a `Performance`, and which version of its scripts a program is
huggingface  what starts programs with Hugging Face's Trainer, and has them print their steps
reread       logs that are there, read again with corrected patterns
pattern_advice  patterns for a log that none of the given ones reads
failure      why a program failed, from its log
"""
