"""The scripts that change what is in Redis, and how to reach it."""
