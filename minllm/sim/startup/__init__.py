"""The folder of sitecustomize.py, which is on PYTHONPATH in the environment of a simulated program's processes."""
