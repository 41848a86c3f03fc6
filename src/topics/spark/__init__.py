"""Topics on Spark: options, schemas, planning and loss, none of which needs a JVM."""
