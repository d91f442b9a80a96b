"""The application that `celery -A tests.faults.ending_celery` works for."""

from tests.faults.ending_services import celery

app = celery()
