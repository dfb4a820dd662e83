"""The experiment to run: a model, clusters, a parallel plan and a batch that can exist together, and who trains it.

Read in this order:

setup_parts      model, clusters, plan and batch, and what follows from them; `chunks` of interleaved pipelines
setup            parts that can exist, which is what is priced, and by which rules; `expert_axis`: those of experts
experiment       a setup and how it is run, which is what the trainer takes
trainer_call     the command of another program that trains, of `templates`; `trainer_limits`: what each cannot run
knobs            the table of what makes up a plan, and how labels, rows and columns spell it
"""
