"""The demo: real work, real faults, checked at the end.

Promises to end with 0 only if every good image has its thumbnail, every broken one is failed with a reason, and the
jobs of the worker that was killed came back. Risks: it writes into its output folder only, and leaves the embedded
server's data there to look at.
"""
