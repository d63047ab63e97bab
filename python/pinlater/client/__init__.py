"""The clients that programs use: one blocks, one is for asyncio."""
