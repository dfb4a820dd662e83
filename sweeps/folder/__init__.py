"""The contents of a sweep's folder beside its record and the files of its trials.

journal     what was done with a sweep since it was planned, and the `History` to which its entries add up
submission  which job works in a folder, and how the attempts before the last one ended
"""
