"""The one name that Trisweep has among installed packages: all others, such as `conf`, lie below it.

In a checkout they lie beside this folder. Either way they import each other by their own names, from a folder that the
command puts first: somebody's own `conf` hides none of them, and none of them hides it from other programs.
"""
