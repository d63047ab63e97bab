//! `pinlater._core`: the native part of `PinLater`. Bytes in, values out.
//!
//! Promises: no socket and no clock (but for the lease renewer), no panic on any input. Risks: it holds the GIL, so a
//! call's size is bounded.
mod ack_batch;
mod ack_item;
mod arguments;
mod bad_argument;
mod body_pattern;
mod claim;
mod clock;
mod command;
mod descriptor;
mod descriptor_group;
mod job;
mod job_info;
mod job_spec;
mod limits;
mod new_job;
mod packed;
mod plain_values;
mod reader;
mod record;
mod records;
mod renewer;
mod reply_reader;
mod shard_index;
mod thrift;
mod token_bucket;

use pyo3::prelude::*;

#[pymodule]
mod _core {
    use crate::limits;

    #[pymodule_export]
    use crate::ack_batch::{AckBatch, group_acks, group_releases};
    #[pymodule_export]
    use crate::body_pattern::BodyPattern;
    #[pymodule_export]
    use crate::claim::{Claim, decode_claim, read_claims};
    #[pymodule_export]
    use crate::command::{CommandHead, pack_commands};
    #[pymodule_export]
    use crate::descriptor::{format_descriptor, format_descriptors, parse_descriptor};
    #[pymodule_export]
    use crate::descriptor_group::group_descriptors;
    #[pymodule_export]
    use crate::job::Job;
    #[pymodule_export]
    use crate::job_info::unpack_info;
    #[pymodule_export]
    use crate::job_spec::pack_jobs;
    #[pymodule_export]
    use crate::new_job::{NewJob, new_jobs};
    #[pymodule_export]
    use crate::plain_values::{PlainCalls, is_plain_value};
    #[pymodule_export]
    use crate::record::unpack_record;
    #[pymodule_export]
    use crate::records::Records;
    #[pymodule_export]
    use crate::renewer::{LeaseRenewer, RenewerStats};
    #[pymodule_export]
    use crate::reply_reader::{BadReply, ReplyReader};
    #[pymodule_export]
    use crate::thrift::ack::{AckCall, count_acks, group_ack_calls, read_ack};
    #[pymodule_export]
    use crate::thrift::dequeue::{DequeueCall, claim_answer, dequeue_answer, read_dequeue};
    #[pymodule_export]
    use crate::thrift::enqueue::{EnqueueCall, enqueue_answer, enqueue_answers, pack_enqueues, read_enqueue};
    #[pymodule_export]
    use crate::thrift::hot_call::{is_frame, read_hot_call};
    #[pymodule_export]
    use crate::thrift::message_check::check_message;
    #[pymodule_export]
    use crate::thrift::refusal::{BadMessage, MissingField, PriorityNotSupported};
    #[pymodule_export]
    use crate::thrift::writer::void_answer;
    #[pymodule_export]
    use crate::token_bucket::TokenBucket;

    #[pymodule_export]
    #[allow(non_upper_case_globals, reason = "Python's name for it")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
    #[pymodule_export]
    const MAX_STATUS_BYTES: usize = limits::MAX_STATUS_BYTES;
    #[pymodule_export]
    const MAX_PRIORITY: u8 = limits::MAX_PRIORITY;
    #[pymodule_export]
    const MAX_ATTEMPTS: u16 = limits::MAX_ATTEMPTS;
    #[pymodule_export]
    const MAX_TIME_MS: u64 = limits::MAX_TIME_MS;
    #[pymodule_export]
    const MAX_BATCH: usize = limits::MAX_BATCH;
}
