"""`python -m trisweep`: the `trisweep` script, for a Python whose scripts are not in the PATH."""

from trisweep.entry import main

if __name__ == "__main__":
    main()
