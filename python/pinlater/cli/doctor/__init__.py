"""`pinlater doctor`: what is wrong with servers and queues, and what to do about it.

Promises to change nothing (except the script cache of servers), to need no more rights than a client, and to say
`unknown` where a managed server hides something. Risks: a setting can change after the check.
"""
