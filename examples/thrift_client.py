"""A client of `pinlater server` without PinLater's code: all it has is the interface file, from which thriftpy2 makes
its classes. Thrift's compiler makes such classes for other languages. `python examples/thrift_client.py [HOST:PORT]`
"""

import sys
from importlib.resources import files

import thriftpy2
from thriftpy2.rpc import make_client
from thriftpy2.transport import TFramedTransportFactory, TTransportException

interface = thriftpy2.load(str(files("pinlater.server") / "pinlater.thrift"), module_name="interface_thrift")
host, _, port = (sys.argv[1] if len(sys.argv) > 1 else "localhost:9010").partition(":")
try:
    client = make_client(interface.PinLater, host, int(port), trans_factory=TFramedTransportFactory(), timeout=10_000)
except TTransportException:
    sys.exit(f"no server answers on {host}:{port}: start `pinlater server` first")
# who calls: an ack counts if it names the source of the dequeue
context = interface.RequestContext(source="example:laptop")
STATES = ["pending", "in progress", "succeeded", "failed"]

client.createQueue(context, "greetings")
jobs = [interface.PinLaterJob(body=b"hello"), interface.PinLaterJob(body=b"world", numAttemptsAllowed=1)]
enqueued = client.enqueueJobs(context, interface.PinLaterEnqueueRequest("greetings", jobs))
print("enqueued", *enqueued.jobDescriptors)

found = client.dequeueJobs(context, interface.PinLaterDequeueRequest("greetings", limit=10)).jobs or {}
done, failed = list[object](), list[object]()
for descriptor, body in found.items():
    print("works on", descriptor, body.decode())
    (done if body == b"hello" else failed).append(interface.PinLaterJobAckInfo(descriptor, "by the example"))

client.ackDequeuedJobs(context, interface.PinLaterJobAckRequest("greetings", done, failed))
infos = client.lookupJobs(context, interface.PinLaterLookupJobRequest([*found]))
for descriptor, info in infos.items():
    print(descriptor, STATES[info.jobState], info.customStatus)
client.close()
