"""What programs hold: the blocking client and the asyncio client."""
