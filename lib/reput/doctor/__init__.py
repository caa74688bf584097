"""Checks whether reput can run here: the machine, Java and Spark, and a store. Nothing is changed."""

from reput.doctor.checks import Check, Status, machine_checks, spark_check, store_checks, worst

__all__ = ["Check", "Status", "machine_checks", "spark_check", "store_checks", "worst"]
