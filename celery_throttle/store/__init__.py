"""The scripts that read and change the data in Redis, and the clients that call them."""
