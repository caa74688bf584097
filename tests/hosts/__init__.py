"""Several hosts on one Linux machine, of namespaces: networks, mounts and processes of their own."""
