"""Protocol cores without I/O: no clock, disk, socket, thread or Spark. One door each: `handle(signal, now_us)`."""
