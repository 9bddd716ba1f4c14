"""What an operator touches: how limits stand, who holds, who waits and why; steering them."""
