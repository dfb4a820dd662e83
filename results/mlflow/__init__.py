"""MLflow: what a run contains, the one writer, the store and its UI.

sweep_import    puts a sweep into MLflow
run_content     what a run holds, as plain values, and its few files
sweep_content   makes that of a sweep, of its trials and of a training; `metric_keys` names it
writer          brings what the store holds to what it should hold, through MLflow's client
store           where the store is, and a client; `reachable` whether it opens
last_import     remembers the last import of a sweep, so that nothing new costs little
follow          imports again and again while a sweep runs, or while any of a folder does
ui              serves MLflow's page
trackers        what is written beside MLflow: `tensorboard` event files, `wandb` offline runs
"""
