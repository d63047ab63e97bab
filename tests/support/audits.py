"""The audit, as tests ask for it."""

from pinlater import Client
from pinlater.operations.audit import AuditReport, audit


def audit_queue(client: Client, queue: str) -> AuditReport:
    """Audits a queue on all its shards. The client's timeout is for each call."""
    return client.run(lambda deadline_s: audit(client.session, queue, deadline_s))
