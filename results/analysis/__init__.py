"""What trials say, as numbers and sentences that every page, table and run shows alike.

comparison  two sweeps beside each other
footprint   energy, money and carbon of a training
accuracy    errors of predictions; `score`: those of a table, whose measurements it reads or refuses
own_level   what finished trials say of points that are predicted only
scaling     efficiency on more devices, and of one layout on several numbers of them
knobs       which knob mattered
findings    what several sections of a report say of a sweep
"""
