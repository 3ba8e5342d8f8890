"""An application on Waltz: a year of flights through the log into a database and summary tables.

Only public names of `waltz` are used here. `python -m demo` runs the whole job and checks it.
"""
