"""Plan which tensors each job moves and when, and decide which jobs run. Everything here is a pure function of frozen
values.
"""
