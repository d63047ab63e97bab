"""The framework: tasks as functions, over the worker engine and the clients.

Promises what docs/tasks.md says of each end of a task. Risks: at-least-once, as the engine below it.
"""
