"""reput: what an Apache RocketMQ broker derives from its commit log, rebuilt with Spark, byte for byte."""

__version__ = "0.1.0"
