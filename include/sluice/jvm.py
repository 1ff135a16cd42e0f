"""How the JVM of a Spark driver is started, said once for all that start one. Light, because DAG files read it."""

STACK = "-Xss64m"
"""Of each thread, and only what is used of it is memory. A regex takes up to 4 KB per character where a group repeats;
by default 1,000 characters were too many, and Spark ends a JVM in which a task's stack is full. It is among Spark's
default options of a JVM, which a group's own, `extraJavaOptions`, do not replace."""
DRIVER = (
    # Nobody waits for an answer from a driver: pauses do no harm, and batches take a tenth less than with G1.
    "-XX:+UseParallelGC",
    # Spark's classes fill 200 MB: on its way there the JVM would collect its whole heap four times before any record.
    "-XX:MetaspaceSize=256m",
)
SMALL = (
    # The JVM's second compiler costs seconds before it gains any.
    "-XX:TieredStopAtLevel=1",
    # Without it the code cache would be five times smaller as well, and a full one ends all compiling for minutes.
    "-XX:ReservedCodeCacheSize=240m",
)
"""For one that is over before compiling for speed has paid."""
SERVICE = ("-XX:+UseSerialGC", *SMALL)
"""For the embedded broker and registry, which are started often and have little to do: a third less to start one."""
