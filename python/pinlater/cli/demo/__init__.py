"""The demo: real work, real faults, checked at the end.

Promises to end with 0 only if every good image has its thumbnail, every job of a broken one failed with a reason, and
the jobs of the killed worker came back. It writes only into its output folder, and leaves the embedded server's data
there.
"""
