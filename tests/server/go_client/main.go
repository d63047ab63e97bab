// A client in Go, on stubs that Apache's compiler makes of pinlater.thrift. It carries out each method once on a server of
// 127.0.0.1 and ends with status 1 at the first answer that differs from what it expects.
//
// Arguments: port, name of a new queue, password of deleteQueue.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"

	"github.com/apache/thrift/lib/go/thrift"

	"pinlater.test/client/pinlater"
)

var ctx = context.Background()

func check(what string, ok bool) {
	if !ok {
		fmt.Fprintln(os.Stderr, "not as expected:", what)
		os.Exit(1)
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, "failed:", err)
		os.Exit(1)
	}
	return value
}

func refused(what string, err error, code pinlater.ErrorCode) {
	var exception *pinlater.PinLaterException
	check(fmt.Sprint(what, ": ", err), errors.As(err, &exception) && exception.ErrorCode == code)
}

func failed(what string, err error, kind int32) {
	var exception thrift.TApplicationException
	check(fmt.Sprint(what, ": ", err), errors.As(err, &exception) && exception.TypeId() == kind)
}

func from(source string) *pinlater.RequestContext {
	made := pinlater.NewRequestContext()
	made.Source = source
	return made
}

func job(body []byte, priority int8) *pinlater.PinLaterJob {
	made := pinlater.NewPinLaterJob()
	made.Body, made.Priority = body, priority
	return made
}

func acks(queue string, succeeded ...string) *pinlater.PinLaterJobAckRequest {
	made := pinlater.NewPinLaterJobAckRequest()
	made.QueueName = queue
	for _, descriptor := range succeeded {
		info := pinlater.NewPinLaterJobAckInfo()
		info.JobDescriptor = descriptor
		made.JobsSucceeded = append(made.JobsSucceeded, info)
	}
	return made
}

func main() {
	port, queue, password := os.Args[1], os.Args[2], os.Args[3]
	configuration := &thrift.TConfiguration{}
	socket := thrift.NewTSocketConf("127.0.0.1:"+port, configuration)
	transport := thrift.NewTFramedTransportConf(socket, configuration)
	must(0, transport.Open())
	defer transport.Close()
	client := pinlater.NewPinLaterClientFactory(transport, thrift.NewTBinaryProtocolFactoryConf(configuration))
	work(client, queue)
	look(client, queue)
	refuse(client, queue)
	must(0, client.DeleteQueue(ctx, from("web:1"), queue, password))
	fmt.Println("as expected")
}

// Jobs come in, are claimed, changed and ended.
func work(client *pinlater.PinLaterClient, queue string) {
	must(0, client.CreateQueue(ctx, from("web:1"), queue))
	bodies := [][]byte{[]byte("a\xff\x00"), {}, []byte("late")}
	late := job(bodies[2], 2)
	time := int64(1) << 43
	late.RunAfterTimestampMillis = &time
	request := &pinlater.PinLaterEnqueueRequest{QueueName: queue, Jobs: []*pinlater.PinLaterJob{job(bodies[0], 1), job(bodies[1], 3), late}}
	descriptors := must(client.EnqueueJobs(ctx, from("web:1"), request)).JobDescriptors
	check("descriptors", len(descriptors) == 3 && regexp.MustCompile(`^`+queue+`:s\w+:p2:\d+$`).MatchString(descriptors[2]))

	dequeue := pinlater.NewPinLaterDequeueRequest()
	dequeue.QueueName, dequeue.Limit, dequeue.DryRun = queue, 10, true
	check("dry run", len(must(client.DequeueJobs(ctx, from("web:1"), dequeue)).Jobs) == 2)
	dequeue.DryRun = false
	given := must(client.DequeueJobs(ctx, from("web:1"), dequeue))
	check("jobs", len(given.Jobs) == 2 && bytes.Equal(given.Jobs[descriptors[0]], bodies[0]) && len(given.Jobs[descriptors[1]]) == 0)
	check("metadata", *given.JobMetadata[descriptors[0]].AttemptsAllowed == 2)

	must(0, client.AckDequeuedJobs(ctx, from("web:10"), acks(queue, descriptors[0])))
	checkpoint := pinlater.NewPinLaterCheckpointJobRequest()
	body, status := "new", "status"
	checkpoint.JobDescriptor, checkpoint.NewBody_, checkpoint.PrependCustomStatus = descriptors[0], &body, &status
	checkpoints := &pinlater.PinLaterCheckpointJobsRequest{QueueName: queue, Requests: []*pinlater.PinLaterCheckpointJobRequest{checkpoint}}
	must(0, client.CheckpointJobs(ctx, from("web:1"), checkpoints))
	lookup := pinlater.NewPinLaterLookupJobRequest()
	lookup.JobDescriptors, lookup.IncludeBody = descriptors, true
	infos := must(client.LookupJobs(ctx, from("web:1"), lookup))
	info := infos[descriptors[0]]
	check("lookup", len(infos) == 3 && info.JobState == pinlater.PinLaterJobState_IN_PROGRESS)
	check("checkpoint", string(info.Body) == body && info.CustomStatus == status && info.ClaimDescriptor != nil)
	check("run-after", *infos[descriptors[2]].RunAfterTimestampMillis == time)

	dequeue.JobAckRequest = acks(queue, descriptors[0])
	check("nothing", must(client.DequeueJobs(ctx, from("web:1"), dequeue)).Jobs == nil)
	lost := acks(queue)
	lost.JobsFailed = acks(queue, descriptors[1]).JobsSucceeded
	must(0, client.AckDequeuedJobs(ctx, from("web:1"), lost))
}

// One job has succeeded, one is pending again, one is late.
func look(client *pinlater.PinLaterClient, queue string) {
	for state, expected := range []int32{1, 0, 1, 0} {
		count := &pinlater.PinLaterGetJobCountRequest{QueueName: queue, JobState: pinlater.PinLaterJobState(state)}
		check(fmt.Sprint("count of state ", state), must(client.GetJobCount(ctx, from("web:1"), count)) == expected)
	}
	scan := pinlater.NewPinLaterScanJobsRequest()
	scan.QueueName, scan.ScanFutureJobs = queue, true
	page := must(client.ScanJobs(ctx, from("web:1"), scan))
	check("scan", len(page.ScannedJobs) == 1 && page.Continuation == pinlater.CONTINUATION_END)
	names := must(client.GetQueueNames(ctx, from("web:1")))
	found := false
	for _, name := range names {
		found = found || name == queue
	}
	check("names", found)
	retry := pinlater.NewPinLaterRetryFailedJobsRequest()
	retry.QueueName = queue
	check("retry", must(client.RetryFailedJobs(ctx, from("web:1"), retry)) == 0)
	remove := pinlater.NewPinLaterDeleteJobsRequest()
	remove.QueueName, remove.JobState, remove.Priority = queue, pinlater.PinLaterJobState_PENDING, 2
	check("delete", must(client.DeleteJobs(ctx, from("web:1"), remove)) == 1)
}

func refuse(client *pinlater.PinLaterClient, queue string) {
	request := &pinlater.PinLaterEnqueueRequest{QueueName: "unknown", Jobs: []*pinlater.PinLaterJob{}}
	_, err := client.EnqueueJobs(ctx, from("web:1"), request)
	refused("unknown queue", err, pinlater.ErrorCode_QUEUE_NOT_FOUND)
	request = &pinlater.PinLaterEnqueueRequest{QueueName: queue, Jobs: []*pinlater.PinLaterJob{job(nil, 9)}}
	_, err = client.EnqueueJobs(ctx, from("web:1"), request)
	refused("priority", err, pinlater.ErrorCode_PRIORITY_NOT_SUPPORTED)
	refused("name", client.CreateQueue(ctx, from("web:1"), "a-b"), pinlater.ErrorCode_QUEUE_NAME_INVALID)
	dequeue := pinlater.NewPinLaterDequeueRequest()
	dequeue.QueueName, dequeue.Limit = queue, -1
	_, err = client.DequeueJobs(ctx, from("web:1"), dequeue)
	failed("limit", err, thrift.INTERNAL_ERROR)
	count := &pinlater.PinLaterGetJobCountRequest{QueueName: queue, JobState: 9}
	_, err = client.GetJobCount(ctx, from("web:1"), count)
	failed("state", err, thrift.PROTOCOL_ERROR)
}
