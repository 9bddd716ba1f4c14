"""The servers that a store may be on: one, the primary that sentinels name, a node of a cluster."""
