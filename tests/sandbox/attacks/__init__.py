"""Attacks on the sandbox: programs that try to break out, to cheat their grader or to spy.

`suite.attack_all` runs all of them, first without isolation and then against a backend.
`benchmarks/red_team.py` does so as root and as an unprivileged user and prints a table.
"""
