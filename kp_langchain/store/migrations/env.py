"""Runs the migrations on the connection that `kp_langchain.store.database` hands over.

The caller holds the transaction and the lock, so nothing is opened or committed here.
"""

from alembic import context

from kp_langchain.store.tables import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
)
context.run_migrations()
