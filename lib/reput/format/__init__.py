"""Byte layouts of the RocketMQ store: constants, encoders and decoders. No I/O, no Spark, no numba."""
