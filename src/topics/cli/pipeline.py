"""`topics pipeline`: jobs on Spark. Each module of commands adds its own to the app when it is imported."""

from topics.cli import pipeline_check, pipeline_copy, pipeline_lake, pipeline_rewrite, pipeline_run
from topics.cli.pipeline_frame import app

__all__ = ["app", "pipeline_check", "pipeline_copy", "pipeline_lake", "pipeline_rewrite", "pipeline_run"]
