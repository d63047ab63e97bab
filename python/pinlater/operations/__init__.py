"""What can be asked of queues, one idea a file. Operations are flows: they yield effects and do no I/O."""
