"""`pinlater doctor`: what is wrong with servers and queues, and what to do about it.

Promises to change nothing (except the script cache of servers), to need no more rights than a client, and to say
`unknown` where a managed server hides something. Risks: it sees one moment; a setting can change afterwards.
"""
