"""Benchmarks: what the project promises in numbers, measured again by `make bench` or `python -m benchmarks`.

Every module here with a `main()` is one benchmark. It prints what it likes and returns its `Target`s (`target`);
`__main__` runs all and prints what was promised beside what was seen.

Predictions: `validate` holds them against `published_rows`, and writes its page from `validation`, `validation_summary`
and `table_results`; `left_out` and `levels` are of the files that it reads. `memory_odds` is
how far predicted memory is off. `who_measured` tells users, makers and papers apart, from which `practices` learns how
wide intervals are. `forward` is what was predicted before
anybody had looked, `expert_plans` and `usual_jobs` what a search proposes beside what was run and what is usual,
`cost_model_tables` the tables of docs (`marked_tables` puts them there).
The trainer: `trainer` against a plain GPT, `overhead`, `timeline`, and `own_runs`, what it took on a GPU beside what
was predicted.
Other trainers: `other_trainers`, random plans that `other_trainers_probe` gives to the programs themselves.
Sweeps: `search`, `lean`, `large_sweep`, `launcher_scale` (with `made_up_slurm` and `measured_command`),
`disturbed_runs`, `search_jobs`, `loss_searches`, and `foreign`, ends of the adaptive search on machines unlike the cost
model. Rooms: `replay`, `fitting`, `chaos`, `gpu_check`.
"""
