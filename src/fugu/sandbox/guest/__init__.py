"""The program that runs beside untrusted programs; it needs only the standard library.

It is started by path, without fugu to import (`launch.py`), and forks a child for each program. The
trusted side imports `codec` and `frames`, so that both ends speak one language.
"""
