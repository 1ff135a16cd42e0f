"""The command line `sluice`: `main`, and one module per group of commands.

In: arguments and the environment. Out: text on standard output and an exit code.
"""
