"""The parts of the published TENSILE policy: access sequences, the transfer channel, swap events, recomputation
events.
"""
