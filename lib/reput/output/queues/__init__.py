"""The files of consume queues."""
