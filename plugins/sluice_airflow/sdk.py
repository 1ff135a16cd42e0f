"""What `airflow.sdk` has since Airflow 3.2, and Airflow itself in 3.1: remove it when 3.1 is no longer supported."""

from __future__ import annotations

try:
    from airflow.sdk.configuration import conf
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowRescheduleException,
        AirflowSkipException,
        DownstreamTasksSkipped,
    )
except ImportError:
    from airflow.configuration import conf
    from airflow.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowRescheduleException,
        AirflowSkipException,
        DownstreamTasksSkipped,
    )

__all__ = [
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowRescheduleException",
    "AirflowSkipException",
    "DownstreamTasksSkipped",
    "conf",
]
