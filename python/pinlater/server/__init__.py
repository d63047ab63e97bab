"""The Thrift service: what `pinlater server` runs."""
