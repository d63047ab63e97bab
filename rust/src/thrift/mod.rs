//! The hot calls of the Thrift service: bytes of a request to a script's arguments, a script's reply to bytes.
//!
//! The interface: `python/pinlater/server/pinlater.thrift`. Promises: a message costs time and memory in proportion to
//! its bytes, whatever they are.
pub mod ack;
pub mod dequeue;
pub mod enqueue;
pub mod hot_call;
pub mod message_check;
mod reader;
pub mod refusal;
mod request;
pub mod writer;
