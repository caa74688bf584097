"""Messages sent again to a running broker, by the Java client of its release."""
