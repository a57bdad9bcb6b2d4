"""What runs beside untrusted programs: a program of its own, of the standard library alone.

It is started by path, without fugu to import (`launch.py`), and forks a child for each program. The
trusted side imports `codec` and `frames` of it, so that both ends speak one language.
"""
