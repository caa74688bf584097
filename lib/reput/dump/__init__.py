"""What is in the files of a store, record by record: what ``reput dump`` shows. Nothing is printed here.

Everything streams: memory depends on blocks, topics and queues, not on the length of a log. Files are only
opened for reading, and no lock is taken.
"""
