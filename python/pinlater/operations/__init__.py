"""The operations on queues and jobs, one idea a file. An operation is a flow: it yields effects and does no I/O."""
