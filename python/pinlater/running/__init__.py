"""`pinlater run`, `worker` and `monitor`: workers in processes, and the supervisor that keeps them running."""
