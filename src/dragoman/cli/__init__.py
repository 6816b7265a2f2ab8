"""What people type: `dragoman …`. One module a command; `main.py` lists them."""
