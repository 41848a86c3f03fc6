"""Every hour the new records of all topics go into the lake. Airflow runs it; `topics` is installed on its workers."""

from datetime import UTC, datetime

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

with DAG(
    "topics_lake", schedule="@hourly", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False, max_active_runs=1
):
    archive = BashOperator(task_id="archive", bash_command="topics pipeline archive s3://bucket/lake --json", retries=2)
    archive >> BashOperator(task_id="optimize", bash_command="topics pipeline optimize s3://bucket/lake --json")
