"""A valid call of each method of the Thrift service: what mutations begin with."""

from __future__ import annotations

from pinlater.server.interface import structs
from tests.support.thrift_frames import call

SEQUENCE = 77_777
NAMES = call("getQueueNames", SEQUENCE)
QUEUE = "q"
JOB = "q:s1:p1:1"

#: A valid call of each method.
CALLS = [
    call("createQueue", name=QUEUE),
    call("deleteQueue", context=None, name="other", password=QUEUE),  # with a context it would wait: it is wrong
    call(
        "enqueueJobs",
        request=structs.PinLaterEnqueueRequest(
            QUEUE,
            [
                structs.PinLaterJob(b"body", 2, 1_000, 3, "status"),
                structs.PinLaterJob(b"\xff\0", runAfterTimestampMillis=2**45),
            ],
        ),
    ),
    call(
        "dequeueJobs",
        request=structs.PinLaterDequeueRequest(
            QUEUE,
            3,
            structs.PinLaterJobAckRequest(QUEUE, [structs.PinLaterJobAckInfo(JOB, "x", 5)], []),
            dryRun=False,
            coverage=0.5,
        ),
    ),
    call(
        "ackDequeuedJobs",
        request=structs.PinLaterJobAckRequest(
            QUEUE, [structs.PinLaterJobAckInfo(JOB)], [structs.PinLaterJobAckInfo("q:s1:p1:2", "é", 9)]
        ),
    ),
    call(
        "checkpointJobs",
        request=structs.PinLaterCheckpointJobsRequest(
            QUEUE, [structs.PinLaterCheckpointJobRequest(JOB, "new", True, 5, 3, "status")]
        ),
    ),
    call("lookupJobs", request=structs.PinLaterLookupJobRequest([JOB, "q:s1:p1:2"], True)),
    call("getJobCount", request=structs.PinLaterGetJobCountRequest(QUEUE, 0, 1, False, "a.*b")),
    NAMES,
    call("scanJobs", request=structs.PinLaterScanJobsRequest(QUEUE, 1, 1, True, "0", 10, "[a-z]+")),
    call("retryFailedJobs", request=structs.PinLaterRetryFailedJobsRequest(QUEUE, 1, 2, 0, 10)),
    call("deleteJobs", request=structs.PinLaterDeleteJobsRequest(QUEUE, 3, 1, "x", 10)),
]
