"""Options of the JVMs that Sluice starts: Spark drivers, and the embedded broker and registry.

Imports nothing, because DAG files import it.
"""

THREAD_STACK_SIZE = "-Xss64m"
"""Memory is taken only for what a thread uses. A regex needs up to 4 KB of stack per character where a group repeats:
the default overflows at 1,000 characters, and Spark ends a JVM whose task overflows its stack. Set through Spark's
`defaultJavaOptions`, which a group's own `extraJavaOptions` do not replace."""
DRIVER_OPTIONS = (
    # Pauses do no harm in a batch job, and batches take a tenth less time than with G1.
    "-XX:+UseParallelGC",
    # Spark's classes fill 200 MB: from the default size the JVM would run four full collections before any record.
    "-XX:MetaspaceSize=256m",
)
SHORT_LIVED_OPTIONS = (
    # The second compiler costs seconds before it saves any.
    "-XX:TieredStopAtLevel=1",
    # The option above makes the code cache five times smaller, and a full one stops all compiling for minutes.
    "-XX:ReservedCodeCacheSize=240m",
)
"""For a JVM that ends before optimised compilation pays off."""
SERVICE_OPTIONS = ("-XX:+UseSerialGC", *SHORT_LIVED_OPTIONS)
"""For the embedded broker and registry, which start often and have little load: a third less time to start."""
