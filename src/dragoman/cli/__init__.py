"""The command line: `dragoman …`. One module for each command; `main.py` lists them."""
