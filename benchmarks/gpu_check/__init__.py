"""`make gpu-check`: what a first user runs on one node with GPUs, and the page that comes of it.

- `session`: which checks, in which order, and what is printed; `report`: what is sent back
- `check`: what a check is, and how many run at once, within the time there is
- `one_device`, `layouts`, `agreement`: every axis against one device, and the same bits again
- `faults`: hang, memory, kill, reshard
- `hardware`: what devices and links reach; `speed`: MFU of three shapes, and where their steps go
- `machine`, `probe`: what is here, and what the configuration says of it; `scale`: how large the checks are
- `workbench`, `job`, `rates_job`: what is run, in processes of its own, through the same folders as a user's
"""
